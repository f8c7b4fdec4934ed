"""Pools of definitions and templates that are generated once from the seed and shared by all files.

A document is a copy of pool entries plus a few random numbers of its own, so rendering takes microseconds.
Two emulators with the same seed serve the same documents.
"""

import random
from dataclasses import dataclass
from typing import Any

from pipeline.emulator import timestamps

JsonObject = dict[str, Any]

LANGUAGES = ("en", "de", "nl", "fr")
DAMAGE_TEXTS: dict[int, tuple[str, ...]] = {
    11: ("Dent", "Delle", "Deuk", "Bosse"),
    12: ("Scratch", "Kratzer", "Kras", "Rayure"),
    13: ("Wet packaging", "Nasse Verpackung", "Natte verpakking", "Emballage mouillé"),
    14: ("Broken seal", "Siegel gebrochen", "Verbroken zegel", "Scellé brisé"),
    15: ("Missing part", "Fehlendes Teil", "Ontbrekend onderdeel", "Pièce manquante"),
    16: ("Paint damage — réf. Ω", "Lackfehler — größer", "Lakschade — café", "Défaut de peinture — été"),
}
DOCUMENT_TYPES = {1: "CMR", 2: "Delivery note", 3: "Bill of lading", 4: "Gate pass", 5: "Überweisung / Beleg"}
_TOWNS = ("Rotterdam", "Bremerhaven", "Antwerpen", "Zeebrugge", "Málaga", "Gdańsk", "Le Havre", "Göteborg")
_QUESTIONS = (
    "Is the seal intact?", "Seal number ", "Temperature on arrival (°C)", "Name of the driver  ",
    "Container nummer — controle", "Datum der Übernahme", "Number of pallets", "Remarks", "検品済み",
    "Подпись получателя",
    ("Have you checked, with the driver and before the first pallet left the trailer, that no packaging "
     "was wet, torn or opened and that every label could be read? (see 4.2, 4.3, 9) "),
    "Vehicle clean and dry",
)  # fmt: skip
_ANSWERS: tuple[str | None, ...] = (
    "Yes", "No", "n/a", "12", "-18.5", "2025-03-14", "J. de Vries", "line one\nline two\r\nline three", None, "",
    "Straße 7, Tür 3", "OK  ", "✅ checked",
)  # fmt: skip
_MIXED_ANSWERS: tuple[Any, ...] = (
    ["Front", "Rear  left"],
    [],
    ["nur eins"],
    [3, True, None],
    {"text": "größer", "count": 2},
    [{"id": 1, "label": "Box A"}, {"id": 2, "label": "Box B"}],
)
_UPLOAD_TYPES = ("snap",) * 12 + ("manual",) * 3 + ("document",) * 4 + ("signature", "video")
CODE_FORMATS = ("NONE", "NONE", "CODE_128", "QR_CODE", "EAN_13", "DATA_MATRIX")


@dataclass(frozen=True, slots=True)
class FixturePools:
    """Shared definitions of one world. Templates never change; files copy them."""

    seed: int
    tenant: int
    uploads: list[JsonObject]
    geocodings: list[JsonObject]
    locations: list[JsonObject]
    workflows: list[JsonObject]
    forms: list[JsonObject]
    fields: list[tuple[int, str]]
    answers: tuple[Any, ...] = _ANSWERS


def build_pools(
    seed: int, until: int, time_format: timestamps.TimeFormat, *, definitions: str = "grow", mixed_answers: bool = False
) -> FixturePools:
    """Generate the pools of a seed; no definition is newer than `until`.

    `definitions`: steps of newer versions of a workflow. `mixed_answers`: some answers are lists or objects.
    """
    rng = random.Random(f"pools:{seed}")
    devices = [(4_000 + n * 7, f"Gate {n} {rng.choice(_TOWNS)}") for n in range(40)]
    geocodings = [_build_geocoding(rng) for _ in range(100)]  # before the other pools: each takes from one sequence
    return FixturePools(
        seed=seed,
        tenant=rng.randrange(100, 999),
        uploads=[_build_upload(rng, devices) for _ in range(400)],
        geocodings=geocodings,
        locations=[{"id": 900 + n, "location": f"{rng.choice(_TOWNS)} terminal {n}"} for n in range(25)],
        workflows=_build_workflows(rng, until, time_format, definitions=definitions),
        forms=[_build_form(rng, n) for n in range(14)],
        fields=[
            (70_000 + n, rng.choice(("PO number", "Weight", "Lot", "Gewicht", "Zone ")) + f" {n}") for n in range(18)
        ],
        answers=_ANSWERS + _MIXED_ANSWERS if mixed_answers else _ANSWERS,
    )


def _build_upload(rng: random.Random, devices: list[tuple[int, str]]) -> JsonObject:
    """Return an upload template: every key of a list item, but ids, times and image names are empty."""
    kind = rng.choice(_UPLOAD_TYPES)
    has_damage = kind == "snap" and rng.random() < 0.15
    damage = rng.choice(list(DAMAGE_TEXTS)) if has_damage else None
    document = rng.choice(list(DOCUMENT_TYPES)) if kind == "document" else None
    device, nick = rng.choice(devices)
    draw = rng.random()
    is_located = draw < 0.8
    blank = "" if draw < 0.9 else None
    return {
        "id": 0,
        "device_id": device,
        "device_nick": nick,
        "created_at": "",
        "scan_date_time": "",
        "upload_type": kind,
        "damage_type_id": damage,
        "damage_type_desc": DAMAGE_TEXTS[damage][0] if damage else None,
        "has_damage": int(has_damage),
        "document_type_id": document,
        "document_type_desc": DOCUMENT_TYPES[document] if document else rng.choice((None, "")),
        "latitude": f"{rng.uniform(36, 60):.6f}" if is_located else blank,
        "longitude": f"{rng.uniform(-5, 25):.6f}" if is_located else blank,
        "image_name": "",
        "image_mime": "application/pdf" if kind == "document" and rng.random() < 0.3 else "image/jpeg",
        "comment": rng.choice((None, None, "", "left rear corner", "siehe Foto 2, größerer Riß", "=SUM(A1)", "漏れ")),
        "image_url": "",
        "image_thumb": "",
        **dict.fromkeys(("workflow_id", "workflow_description", "workflow_step_id", "workflow_step_description")),
    }


def _build_geocoding(rng: random.Random) -> JsonObject:
    town = rng.choice(_TOWNS)
    address = {
        "address": {
            "streetNumber": str(rng.randrange(1, 200)),
            "streetName": rng.choice(("Kade", "Hafenstraße", "Rue du Port")),
            "municipality": town,
            "countryCode": rng.choice(("NL", "DE", "BE", "FR")),
        },
        "position": f"{rng.uniform(36, 60):.6f},{rng.uniform(-5, 25):.6f}",
    }
    count = int(rng.random() < 0.9)
    return {"summary": {"queryTime": rng.randrange(3, 90), "numResults": count}, "addresses": [address] * count}


def _build_workflows(
    rng: random.Random, until: int, time_format: timestamps.TimeFormat, *, definitions: str
) -> list[JsonObject]:
    """Return workflow definitions; every third has two versions.

    The newer version has a step more. With `lose-steps` it has only the first of the older steps beside it, with
    `remove-steps` all of them, the first as removed.
    """
    format_time = timestamps.TIME_FORMATS[time_format]
    flows: list[JsonObject] = []
    for n in range(9):
        created = until - rng.randrange(600, 1095) * timestamps.DAY
        flow = {
            "id": 300 + n,
            "name": f"{rng.choice(('Inbound', 'Outbound', 'Rückläufer', 'Inspection '))} {n}",
            "type": rng.choice(("default", "checklist")),
            "force": rng.random() < 0.2,
            "order": n,
            "language": rng.choice(("en", "de", None)),
            "location_filter": None,
            "close_file_after_completion": rng.random() < 0.3,
            "info_url": rng.choice((None, "https://handbook.example.invalid/flow")),
            "created_at": format_time(created),
            "updated_at": format_time(created),
        }
        steps = [_build_step(rng, 300 + n, index) for index in range(rng.randrange(2, 6))]
        flows.append({**flow, "steps": steps})
        if n % 3 == 0:
            later = {"updated_at": format_time(created + 200 * timestamps.DAY), "name": f"{flow['name']} (v2)"}
            older = steps[:1] if definitions == "lose-steps" else steps
            if definitions == "remove-steps":
                older = [{**steps[0], "deleted_at": later["updated_at"]}, *steps[1:]]
            flows.append({**flow, **later, "steps": [*older, _build_step(rng, 300 + n, len(steps))]})
    return flows


def _build_step(rng: random.Random, flow: int, index: int) -> JsonObject:
    return {
        "id": flow * 100 + index,
        "workflow_id": flow,
        "order": index + 1,
        "description": rng.choice(("Photograph the seal", "Scan CMR", "Rückseite", "Sign ")) + f" {index + 1}",
        "type": rng.choice(("snap", "document", "form")),
        "allow_skip": rng.random() < 0.4,
        "platform_description": rng.choice(("Seal", "CMR", "Back side", "Signature")),
        "data": rng.choice((None, {"min": 1, "max": 4})),
        "deleted_at": None,
    }


def _build_form(rng: random.Random, n: int) -> JsonObject:
    count = rng.randrange(2, 8)
    questions = [{"id": 5_000 + n * 50 + q, "label": rng.choice(_QUESTIONS)} for q in range(count)]
    return {"id": 40 + n, "title": f"{rng.choice(('Gate check', 'Übergabe', 'Reefer'))} {n}", "questions": questions}
