"""References between the tables and views of the lake: which column names a row of which other table."""

from __future__ import annotations

from typing import Final

_REFERENCES: Final = {
    ("files", "recent_snap_id"): "uploads.id",
    ("form_answers", "form_submit_id"): "form_submits.id",
    ("fields", "snap_id"): "uploads.id",
    ("workflow_runs", "workflow_id"): "workflows.id",
    ("workflow_runs", "_definition_hash"): "workflow_definitions._definition_hash",
    ("workflow_run_steps", "workflow_run_id"): "workflow_runs.id",
    ("workflow_run_steps", "workflow_step_id"): "workflow_definition_steps.id",
    ("workflow_run_steps", "workflow_id"): "workflows.id",
    ("workflow_run_step_items", "workflow_run_id"): "workflow_runs.id",
    ("workflow_run_step_items", "workflow_run_step_id"): "workflow_run_steps.id",
    ("workflow_run_step_items", "entity_id"): "uploads.id",
    ("workflow_definition_steps", "_definition_hash"): "workflow_definitions._definition_hash",
    ("workflow_definition_steps", "workflow_id"): "workflows.id",
    ("workflow_progress", "workflow_run_id"): "workflow_runs.id",
    ("workflow_progress", "workflow_id"): "workflows.id",
    ("workflow_progress", "_definition_hash"): "workflow_definitions._definition_hash",
    ("open_workflow_runs", "workflow_run_id"): "workflow_runs.id",
    ("open_workflow_runs", "workflow_id"): "workflows.id",
    ("form_answers_wide", "form_submit_id"): "form_submits.id",
    ("upload_addresses", "upload_id"): "uploads.id",
    ("images", "upload_id"): "uploads.id",
}
"""Table and column to the column whose row they name."""
_HAVE_OWN_FILES: Final = frozenset({"files", "deleted_files"})


def find_reference(table: str, column: str) -> str | None:
    """Return the column whose row a column names, as table.column; None if it names no row.

    Where both tables have `file_id`, a join needs it too: ids of children are unique within a file.
    """
    if column == "file_id" and table not in _HAVE_OWN_FILES:
        return "files.file_id"
    return _REFERENCES.get((table, column))
