"""What the service sends: one model an object, after section 2 of the interface and the field notes.

Every key is optional, because deployments differ in what they leave out; unknown keys are kept. The
models are the contract in one place: `tables` derives its columns from them, the client hands them out
(`Document.model()`), and the vectorised flattening asks the same judges (`kinds`).
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from schemas import kinds

Id = Annotated[int | None, kinds.ID]
Count = Annotated[int | None, kinds.COUNT]
Instant = Annotated[int | None, kinds.INSTANT]
Flag = Annotated[bool | None, kinds.FLAG]
Text = Annotated[str | None, kinds.TEXT]
Number = Annotated[float | None, kinds.NUMBER]
Json = Annotated[str | None, kinds.JSON]

_Item = TypeVar("_Item")
Many = Annotated[list[_Item], BeforeValidator(lambda sent: [] if sent is None else sent)]
"""A collection; `null` is as good as an empty one."""


def _says(meaning: str) -> Any:
    return Field(default=None, description=meaning)


def _many(meaning: str) -> Any:
    return Field(default_factory=list, description=meaning)


class Wire(BaseModel):
    """An object as the service sends it. Errors of validation never show the value."""

    model_config = ConfigDict(extra="allow", frozen=True, hide_input_in_errors=True)


class Upload(Wire):
    """An image or a document scan (2.2)."""

    id: Id = _says("Unique identifier of the upload.")
    tenant_id: Id = _says("Tenant the upload belongs to (detail only).")
    device_id: Id = _says("Device that took the image.")
    device_nick: Text = _says("Name of that device.")
    created_at: Instant = _says("Registered on the platform.")
    scan_date_time: Instant = _says("Taken in the app.")
    upload_type: Text = _says("Type of data: snap, manual, document, and others.")
    damage_type_id: Id = _says("Kind of damage, by number.")
    damage_type_desc: Text = _says("Kind of damage, in the lake's language where there is one.")
    has_damage: Flag = _says("The app user marked damage on the image.")
    document_type_id: Id = _says("Selected document type, by number.")
    document_type_desc: Text = _says("Selected document type, for document scans.")
    latitude: Number = _says("Latitude of the user, degrees.")
    longitude: Number = _says("Longitude of the user, degrees.")
    image_name: Text = _says("File name of the image.")
    image_mime: Text = _says("Image type, typically image/jpeg.")
    comment: Text = _says("Comment of the app user.")
    image_path: Text = _says("Path of the image (detail only).")
    image_url: Text = _says("URL of the full image. Whoever has it can fetch the image: treat it as a secret.")
    image_thumb: Text = _says("URL of a small image with the full content. Treat it as a secret.")
    workflow_id: Id = _says("Workflow the image was taken in.")
    workflow_description: Text = _says("Platform description of that workflow.")
    workflow_step_id: Id = _says("Workflow step the image was taken in.")
    workflow_step_description: Text = _says("Platform description of that step.")
    geocoding: Json = _says("Addresses found for the position, as sent.")


class FormSubmit(Wire):
    """A submitted form (2.3). Its questions and answers come in three spellings, see `flatten.forms`."""

    id: Text = _says("Unique reference of the submission. Text: the interface names no type.")
    form_id: Id = _says("Number of the form that was filled in.")
    title: Text = _says("Title of the form.")
    form: Any = _says("The form: its id, title, and sometimes fields and answers.")
    fields: Any = _says("Questions, sometimes with their answers.")
    answers: Any = _says("Answers, matched to the questions by id.")


class FormAnswer(Wire):
    """One question of a submission with its answer, whichever spelling it came in."""

    id: Text = _says("Question id within the form. Text: the interface names no type.")
    label: Text = _says("The question, trimmed.")
    value: Text = _says("The answer as filled in.")


class CustomField(Wire):
    """A custom field (2.4)."""

    id: Id = _says("Deprecated and wrongly mapped by the service. Never a key.")
    field_id: Id = _says("Unique identifier of the custom field.")
    name: Text = _says("Field name.")
    value: Text = _says("Value as submitted.")
    snap_id: Id = _says("Upload the value was scanned from, where it was.")
    created_at: Instant = _says("Created.")
    updated_at: Instant = _says("Last updated.")


class Location(Wire):
    """Location settings of a device used to create the file (2.5)."""

    id: Id = _says("Unique identifier of the location.")
    location: Text = _says("Name of the location.")


class WorkflowStep(Wire):
    """A step of a workflow's definition (2.6)."""

    id: Id = _says("Unique identifier of the step.")
    workflow_id: Id = _says("Workflow the step belongs to.")
    order: Count = _says("Place of the step in the workflow.")
    description: Text = _says("Description in the app.")
    type: Text = _says("Type of step.")
    allow_skip: Flag = _says("The step may be skipped.")
    platform_description: Text = _says("Description on the platform.")
    data: Json = _says("Settings of the step, as sent.")
    deleted_at: Instant = _says("Removed from the workflow.")


class Workflow(Wire):
    """The definition of a workflow, embedded in each of its runs (2.6)."""

    id: Id = _says("Unique identifier of the workflow.")
    name: Text = _says("Name.")
    type: Text = _says("Type.")
    force: Flag = _says("Users must follow the workflow.")
    order: Count = _says("Place among the workflows.")
    language: Text = _says("Language of the workflow.")
    location_filter: Json = _says("Locations the workflow is offered at, as sent.")
    close_file_after_completion: Flag = _says("Completing the workflow closes the file.")
    info_url: Text = _says("Address with instructions.")
    created_at: Instant = _says("Created.")
    updated_at: Instant = _says("Last updated.")
    steps: Many[WorkflowStep] = _many("Its steps.")


class WorkflowRunStep(Wire):
    """A step as it was executed or skipped (2.6)."""

    id: Id = _says("Unique identifier of the executed step.")
    workflow_run_id: Id = _says("Run the step belongs to.")
    workflow_step_id: Id = _says("Step of the definition. May name one that the definition no longer has.")
    entity_type: Text = _says("What the items are, for example uploads.")
    status: Text = _says("Status, for example done or skipped.")
    entity_ids: Many[Any] = _many("Items of the file that belong to the step. May name uploads still to come.")
    device_id: Id = _says("Device that executed the step.")
    submit_date_time: Instant = _says("Submitted.")
    created_at: Instant = _says("Created.")
    updated_at: Instant = _says("Last updated.")


class WorkflowRun(Wire):
    """A workflow carried out on a file (2.6)."""

    id: Id = _says("Unique identifier of the run.")
    workflow_id: Id = _says("Workflow that was run.")
    tenant_id: Id = _says("Tenant the run belongs to.")
    client_key: Text = _says("Key given by the app.")
    submit_date_time: Instant = _says("Submitted.")
    created_at: Instant = _says("Created.")
    updated_at: Instant = _says("Last updated.")
    completed_at: Instant = _says("Completed; empty while the run is open.")
    deleted_at: Instant = _says("Removed.")
    started_on_device_at: Instant = _says("Started, by the device's clock.")
    finished_on_device_at: Instant = _says("Finished, by the device's clock.")
    workflow: Workflow | None = _says("The workflow's definition.")
    workflow_run_steps: Many[WorkflowRunStep] = _many("Its executed and skipped steps.")


class File(Wire):
    """A file, from the list or the detail call (2.1)."""

    id: Id = _says("Unique identifier of the file.")
    file_id: Id = _says("Identifier of this instance, where several share one id.")
    scan_code: Text = _says("The client's reference of the file. Not unique.")
    scan_code_format: Text = _says("Barcode type of the reference; NONE when nothing was scanned.")
    closed: Flag = _says("The file is closed.")
    created_at: Instant = _says("First upload or form was registered.")
    updated_at: Instant = _says("Last updated.")
    recent_snap_id: Id = _says("Latest upload.")
    snap_count: Count = _says("Number of uploads, as the service counts them.")
    snap_count_with_damage: Count = _says("Number of uploads with damage, as the service counts them.")
    uploads: Many[Upload] = _many("Its uploads.")
    form_submits: Many[FormSubmit] = _many("Its submitted forms.")
    fields: Many[CustomField] = _many("Its custom fields.")
    locations: Many[Location] = _many("Locations of the devices used.")
    workflow_runs: Many[WorkflowRun] = _many("Its workflow runs.")


def kind_of(model: type[Wire], key: str) -> kinds.Kind | None:
    """The kind of the value under `key`, or None where a list or an object stands."""
    for mark in model.model_fields[key].metadata:
        if isinstance(mark, kinds.Kind):
            return mark
    return None
