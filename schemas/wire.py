"""Keys of the service's objects, after section 2 of the interface and the field notes.

Every key is optional, because deployments omit different keys; unknown keys are kept elsewhere. `tables` derives its
columns from them, in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from schemas.value_types import BOOLEAN, COUNT, ID, INSTANT, JSON, NUMBER, TEXT, ValueType

WireKeys: TypeAlias = Mapping[str, tuple[ValueType, str] | None]
"""Type and meaning by key; None for a list or an object, whose values other tables have."""

UPLOAD: Final[WireKeys] = {
    "id": (ID, "Unique identifier of the upload."),
    "tenant_id": (ID, "Tenant the upload belongs to (detail only)."),
    "device_id": (TEXT, "Device that took the image. Text: the interface does not name a number here."),
    "device_nick": (TEXT, "Name of that device."),
    "created_at": (INSTANT, "Registered on the platform (UTC)."),
    "scan_date_time": (INSTANT, "Taken in the app (UTC)."),
    "upload_type": (TEXT, "Type of data: snap, manual, document, and others."),
    "damage_type_id": (ID, "Kind of damage, by number."),
    "damage_type_desc": (TEXT, "Kind of damage, in the lake's language if available."),
    "has_damage": (BOOLEAN, "The app user marked damage on the image."),
    "document_type_id": (ID, "Selected document type, by number."),
    "document_type_desc": (TEXT, "Selected document type, for document scans."),
    "latitude": (NUMBER, "Latitude of the user, degrees."),
    "longitude": (NUMBER, "Longitude of the user, degrees."),
    "image_name": (TEXT, "File name of the image."),
    "image_mime": (TEXT, "Image type, typically image/jpeg."),
    "comment": (TEXT, "Comment of the app user."),
    "image_path": (TEXT, "Path of the image (detail only)."),
    "image_url": (
        TEXT,
        "URL of the full image; it may expire, sync --full renews it. It needs no token: keep it secret.",
    ),
    "image_thumb": (TEXT, "URL of a small image with the full content, otherwise as image_url."),
    "workflow_id": (TEXT, "Workflow the image was taken in. Text: the interface does not name a number."),
    "workflow_description": (TEXT, "Platform description of that workflow."),
    "workflow_step_id": (TEXT, "Workflow step the image was taken in. Text: the interface does not name a number."),
    "workflow_step_description": (TEXT, "Platform description of that step."),
    "geocoding": (JSON, "Addresses found for the position, as sent."),
}
"""An image or a document scan (2.2)."""
FORM_SUBMIT: Final[WireKeys] = {
    "id": (TEXT, "Unique reference of the submission. Text: the interface names no type."),
    "form_id": (ID, "Number of the form that was filled in."),
    "title": (TEXT, "Title of the form."),
    "form": None,
    "fields": None,
    "answers": None,
}
"""A submitted form (2.3). `flatten.forms` reads its three formats."""
FORM_ANSWER: Final[WireKeys] = {
    "id": (TEXT, "Question id within the form. Text: the interface names no type."),
    "label": (TEXT, "The question, as sent."),
    "value": (TEXT, "The answer as filled in; a list or an object as readable text."),
    "value_json": (JSON, "The answer as sent if it is a list or an object; otherwise NULL."),
}
"""One question of a submission with its answer, in one format."""
CUSTOM_FIELD: Final[WireKeys] = {
    "id": (ID, "Deprecated and wrongly mapped by the service. Never a key."),
    "field_id": (ID, "Unique identifier of the custom field."),
    "name": (TEXT, "Field name."),
    "value": (TEXT, "Value as submitted."),
    "snap_id": (ID, "Upload the value was scanned from, if any."),
    "created_at": (INSTANT, "Created (UTC)."),
    "updated_at": (INSTANT, "Last updated (UTC)."),
}
"""A custom field (2.4)."""
LOCATION: Final[WireKeys] = {
    "id": (ID, "Unique identifier of the location."),
    "location": (TEXT, "Name of the location."),
}
"""Location settings of a device used to create the file (2.5)."""
WORKFLOW_STEP: Final[WireKeys] = {
    "id": (ID, "Unique identifier of the step."),
    "workflow_id": (ID, "Workflow the step belongs to."),
    "order": (COUNT, "Position of the step in the workflow."),
    "description": (TEXT, "Description in the app."),
    "type": (TEXT, "Type of step."),
    "allow_skip": (BOOLEAN, "The step may be skipped."),
    "platform_description": (TEXT, "Description on the platform."),
    "data": (JSON, "Settings of the step, as sent."),
    "deleted_at": (INSTANT, "Removed from the workflow (UTC)."),
}
"""A step of a workflow's definition (2.6)."""
WORKFLOW: Final[WireKeys] = {
    "id": (ID, "Unique identifier of the workflow."),
    "name": (TEXT, "Name."),
    "type": (TEXT, "Type."),
    "force": (BOOLEAN, "Users must follow the workflow."),
    "order": (COUNT, "Position among the workflows."),
    "language": (TEXT, "Language of the workflow."),
    "location_filter": (JSON, "Locations the workflow is offered at, as sent."),
    "close_file_after_completion": (BOOLEAN, "Completing the workflow closes the file."),
    "info_url": (TEXT, "Address with instructions."),
    "created_at": (INSTANT, "Created (UTC)."),
    "updated_at": (INSTANT, "Last updated (UTC)."),
    "steps": None,
}
"""The definition of a workflow, embedded in each of its runs (2.6)."""
WORKFLOW_RUN_STEP: Final[WireKeys] = {
    "id": (ID, "Unique identifier of the executed step."),
    "workflow_run_id": (ID, "Run the step belongs to."),
    "workflow_step_id": (ID, "Step of the definition. Can name a removed step."),
    "entity_type": (TEXT, "What the items are, for example uploads."),
    "status": (TEXT, "Status, for example done or skipped."),
    "entity_ids": None,
    "device_id": (TEXT, "Device that executed the step. Text, as in uploads."),
    "submit_date_time": (INSTANT, "Submitted (UTC)."),
    "created_at": (INSTANT, "Created (UTC)."),
    "updated_at": (INSTANT, "Last updated (UTC)."),
}
"""An executed or skipped step (2.6)."""
WORKFLOW_RUN: Final[WireKeys] = {
    "id": (ID, "Unique identifier of the run."),
    "workflow_id": (ID, "Workflow that was run."),
    "tenant_id": (ID, "Tenant the run belongs to."),
    "client_key": (TEXT, "Key given by the app."),
    "submit_date_time": (INSTANT, "Submitted (UTC)."),
    "created_at": (INSTANT, "Created (UTC)."),
    "updated_at": (INSTANT, "Last updated (UTC)."),
    "completed_at": (INSTANT, "Completed (UTC); empty while the run is open."),
    "deleted_at": (INSTANT, "Removed (UTC)."),
    "started_on_device_at": (INSTANT, "Started, by the device's clock (UTC)."),
    "finished_on_device_at": (INSTANT, "Finished, by the device's clock (UTC)."),
    "workflow": None,
    "workflow_run_steps": None,
}
"""A workflow carried out on a file (2.6)."""
FILE: Final[WireKeys] = {
    "id": (ID, "Unique identifier of the file."),
    "file_id": (ID, "Identifier of this instance, where several share one id."),
    "scan_code": (TEXT, "The client's reference of the file. Not unique."),
    "scan_code_format": (TEXT, "Barcode type of the reference; NONE when nothing was scanned."),
    "closed": (BOOLEAN, "The file is closed."),
    "created_at": (INSTANT, "First upload or form was registered (UTC)."),
    "updated_at": (INSTANT, "Last updated (UTC)."),
    "recent_snap_id": (ID, "Latest upload."),
    "snap_count": (COUNT, "Number of uploads, as the service counts them."),
    "snap_count_with_damage": (COUNT, "Number of uploads with damage, as the service counts them."),
    "uploads": None,
    "form_submits": None,
    "fields": None,
    "locations": None,
    "workflow_runs": None,
}
"""A file, from the list or the detail call (2.1)."""
