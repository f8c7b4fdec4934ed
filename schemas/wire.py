"""Models of the service's objects, after section 2 of the interface and the field notes.

Every key is optional, because deployments omit different keys; a model keeps unknown keys.
`tables` derives its columns from the models. `pipeline.flatten` converts values by the same types (`value_types`).
The product does not validate documents with these models. Users of the client get them by `to_model`.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from schemas import value_types

Id = Annotated[int | None, value_types.ID]
Count = Annotated[int | None, value_types.COUNT]
Instant = Annotated[int | None, value_types.INSTANT]
Flag = Annotated[bool | None, value_types.BOOLEAN]
Text = Annotated[str | None, value_types.TEXT]
Number = Annotated[float | None, value_types.NUMBER]
Json = Annotated[str | None, value_types.JSON]

_Item = TypeVar("_Item")
ListOf = Annotated[list[_Item], BeforeValidator(lambda sent: [] if sent is None else sent)]
"""A collection; `null` means an empty collection."""


def _field(meaning: str) -> Any:
    return Field(default=None, description=meaning)


def _list_field(meaning: str) -> Any:
    return Field(default_factory=list, description=meaning)


class WireModel(BaseModel):
    """An object of the service. Validation errors never show the value."""

    model_config = ConfigDict(extra="allow", frozen=True, hide_input_in_errors=True, defer_build=True)


class Upload(WireModel):
    """An image or a document scan (2.2)."""

    id: Id = _field("Unique identifier of the upload.")
    tenant_id: Id = _field("Tenant the upload belongs to (detail only).")
    device_id: Text = _field("Device that took the image. Text: the interface does not name a number here.")
    device_nick: Text = _field("Name of that device.")
    created_at: Instant = _field("Registered on the platform (UTC).")
    scan_date_time: Instant = _field("Taken in the app (UTC).")
    upload_type: Text = _field("Type of data: snap, manual, document, and others.")
    damage_type_id: Id = _field("Kind of damage, by number.")
    damage_type_desc: Text = _field("Kind of damage, in the lake's language if available.")
    has_damage: Flag = _field("The app user marked damage on the image.")
    document_type_id: Id = _field("Selected document type, by number.")
    document_type_desc: Text = _field("Selected document type, for document scans.")
    latitude: Number = _field("Latitude of the user, degrees.")
    longitude: Number = _field("Longitude of the user, degrees.")
    image_name: Text = _field("File name of the image.")
    image_mime: Text = _field("Image type, typically image/jpeg.")
    comment: Text = _field("Comment of the app user.")
    image_path: Text = _field("Path of the image (detail only).")
    image_url: Text = _field(
        "URL of the full image; it may expire, sync --full renews it. It needs no token: keep it secret."
    )
    image_thumb: Text = _field("URL of a small image with the full content, otherwise as image_url.")
    workflow_id: Text = _field("Workflow the image was taken in. Text: the interface does not name a number.")
    workflow_description: Text = _field("Platform description of that workflow.")
    workflow_step_id: Text = _field("Workflow step the image was taken in. Text: the interface does not name a number.")
    workflow_step_description: Text = _field("Platform description of that step.")
    geocoding: Json = _field("Addresses found for the position, as sent.")


class FormSubmit(WireModel):
    """A submitted form (2.3). `flatten.forms` reads its three formats."""

    id: Text = _field("Unique reference of the submission. Text: the interface names no type.")
    form_id: Id = _field("Number of the form that was filled in.")
    title: Text = _field("Title of the form.")
    form: Any = _field("The form: its id, title, and sometimes fields and answers.")
    fields: Any = _field("Questions, sometimes with their answers.")
    answers: Any = _field("Answers, matched to the questions by id.")


class FormAnswer(WireModel):
    """One question of a submission with its answer, in one format."""

    id: Text = _field("Question id within the form. Text: the interface names no type.")
    label: Text = _field("The question, as sent.")
    value: Text = _field("The answer as filled in; a list or an object as readable text.")
    value_json: Json = _field("The answer as sent if it is a list or an object; otherwise NULL.")


class CustomField(WireModel):
    """A custom field (2.4)."""

    id: Id = _field("Deprecated and wrongly mapped by the service. Never a key.")
    field_id: Id = _field("Unique identifier of the custom field.")
    name: Text = _field("Field name.")
    value: Text = _field("Value as submitted.")
    snap_id: Id = _field("Upload the value was scanned from, if any.")
    created_at: Instant = _field("Created (UTC).")
    updated_at: Instant = _field("Last updated (UTC).")


class Location(WireModel):
    """Location settings of a device used to create the file (2.5)."""

    id: Id = _field("Unique identifier of the location.")
    location: Text = _field("Name of the location.")


class WorkflowStep(WireModel):
    """A step of a workflow's definition (2.6)."""

    id: Id = _field("Unique identifier of the step.")
    workflow_id: Id = _field("Workflow the step belongs to.")
    order: Count = _field("Position of the step in the workflow.")
    description: Text = _field("Description in the app.")
    type: Text = _field("Type of step.")
    allow_skip: Flag = _field("The step may be skipped.")
    platform_description: Text = _field("Description on the platform.")
    data: Json = _field("Settings of the step, as sent.")
    deleted_at: Instant = _field("Removed from the workflow (UTC).")


class Workflow(WireModel):
    """The definition of a workflow, embedded in each of its runs (2.6)."""

    id: Id = _field("Unique identifier of the workflow.")
    name: Text = _field("Name.")
    type: Text = _field("Type.")
    force: Flag = _field("Users must follow the workflow.")
    order: Count = _field("Position among the workflows.")
    language: Text = _field("Language of the workflow.")
    location_filter: Json = _field("Locations the workflow is offered at, as sent.")
    close_file_after_completion: Flag = _field("Completing the workflow closes the file.")
    info_url: Text = _field("Address with instructions.")
    created_at: Instant = _field("Created (UTC).")
    updated_at: Instant = _field("Last updated (UTC).")
    steps: ListOf[WorkflowStep] = _list_field("Its steps.")


class WorkflowRunStep(WireModel):
    """An executed or skipped step (2.6)."""

    id: Id = _field("Unique identifier of the executed step.")
    workflow_run_id: Id = _field("Run the step belongs to.")
    workflow_step_id: Id = _field("Step of the definition. Can name a removed step.")
    entity_type: Text = _field("What the items are, for example uploads.")
    status: Text = _field("Status, for example done or skipped.")
    entity_ids: ListOf[Any] = _list_field("The step's items. Can name uploads that do not exist yet.")
    device_id: Text = _field("Device that executed the step. Text, as in uploads.")
    submit_date_time: Instant = _field("Submitted (UTC).")
    created_at: Instant = _field("Created (UTC).")
    updated_at: Instant = _field("Last updated (UTC).")


class WorkflowRun(WireModel):
    """A workflow carried out on a file (2.6)."""

    id: Id = _field("Unique identifier of the run.")
    workflow_id: Id = _field("Workflow that was run.")
    tenant_id: Id = _field("Tenant the run belongs to.")
    client_key: Text = _field("Key given by the app.")
    submit_date_time: Instant = _field("Submitted (UTC).")
    created_at: Instant = _field("Created (UTC).")
    updated_at: Instant = _field("Last updated (UTC).")
    completed_at: Instant = _field("Completed (UTC); empty while the run is open.")
    deleted_at: Instant = _field("Removed (UTC).")
    started_on_device_at: Instant = _field("Started, by the device's clock (UTC).")
    finished_on_device_at: Instant = _field("Finished, by the device's clock (UTC).")
    workflow: Workflow | None = _field("The workflow's definition.")
    workflow_run_steps: ListOf[WorkflowRunStep] = _list_field("Its executed and skipped steps.")


class File(WireModel):
    """A file, from the list or the detail call (2.1)."""

    id: Id = _field("Unique identifier of the file.")
    file_id: Id = _field("Identifier of this instance, where several share one id.")
    scan_code: Text = _field("The client's reference of the file. Not unique.")
    scan_code_format: Text = _field("Barcode type of the reference; NONE when nothing was scanned.")
    closed: Flag = _field("The file is closed.")
    created_at: Instant = _field("First upload or form was registered (UTC).")
    updated_at: Instant = _field("Last updated (UTC).")
    recent_snap_id: Id = _field("Latest upload.")
    snap_count: Count = _field("Number of uploads, as the service counts them.")
    snap_count_with_damage: Count = _field("Number of uploads with damage, as the service counts them.")
    uploads: ListOf[Upload] = _list_field("Its uploads.")
    form_submits: ListOf[FormSubmit] = _list_field("Its submitted forms.")
    fields: ListOf[CustomField] = _list_field("Its custom fields.")
    locations: ListOf[Location] = _list_field("Locations of the devices used.")
    workflow_runs: ListOf[WorkflowRun] = _list_field("Its workflow runs.")


def kind_of(model: type[WireModel], key: str) -> value_types.ValueType | None:
    """Return the value type of `key`, None for a list or an object."""
    metadata = model.model_fields[key].metadata
    return next((item for item in metadata if isinstance(item, value_types.ValueType)), None)
