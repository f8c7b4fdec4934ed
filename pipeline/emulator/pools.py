"""What files are made of: definitions and skeletons grown once from the seed, shared by all files.

Everything a file shows comes from these pools and a few draws of its own, so a document costs
microseconds and two emulators with one seed tell the same story.
"""

import random
from dataclasses import dataclass
from typing import Any

from pipeline.emulator import stamps

JsonObject = dict[str, Any]

LANGUAGES = ("en", "de", "nl", "fr")
DAMAGE_TEXTS: dict[int, tuple[str, ...]] = {
    11: ("Dent", "Delle", "Deuk", "Bosse"),
    12: ("Scratch", "Kratzer", "Kras", "Rayure"),
    13: ("Wet packaging", "Nasse Verpackung", "Natte verpakking", "Emballage mouillé"),
    14: ("Broken seal", "Siegel gebrochen", "Verbroken zegel", "Scellé brisé"),
    15: ("Missing part", "Fehlendes Teil", "Ontbrekend onderdeel", "Pièce manquante"),
    16: ("Paint flaw — réf. Ω", "Lackfehler — größer", "Lakschade — café", "Défaut de peinture — été"),
}
DOCUMENT_TYPES = {1: "CMR", 2: "Delivery note", 3: "Bill of lading", 4: "Gate pass", 5: "Überweisung / Beleg"}
_TOWNS = ("Rotterdam", "Bremerhaven", "Antwerpen", "Zeebrugge", "Málaga", "Gdańsk", "Le Havre", "Göteborg")
_QUESTIONS = (
    "Is the seal intact?",
    "Seal number ",
    "Temperature on arrival (°C)",
    "Name of the driver  ",
    "Container nummer — controle",
    "Datum der Übernahme",
    "Number of pallets",
    "Remarks",
    "検品済み",
    "Подпись получателя",
    (
        "Have you checked, with the driver and before the first pallet left the trailer, that no packaging "
        "was wet, torn or opened and that every label could be read? (see 4.2, 4.3, 9) "
    ),
    "Vehicle clean and dry",
)
_ANSWERS: tuple[str | None, ...] = (
    "Yes",
    "No",
    "n/a",
    "12",
    "-18.5",
    "2025-03-14",
    "J. de Vries",
    "line one\nline two\r\nline three",
    None,
    "",
    "Straße 7, Tür 3",
    "OK  ",
    "✅ checked",
)
_UPLOAD_TYPES = ("snap",) * 12 + ("manual",) * 3 + ("document",) * 4 + ("signature", "video")
_CODE_FORMATS = ("NONE", "NONE", "CODE_128", "QR_CODE", "EAN_13", "DATA_MATRIX")


@dataclass(frozen=True, slots=True)
class Pools:
    """The shared definitions of one world. Templates are never changed; files copy them."""

    seed: int
    tenant: int
    uploads: list[JsonObject]
    geocodings: list[JsonObject]
    devices: list[tuple[int, str]]
    locations: list[JsonObject]
    workflows: list[JsonObject]
    forms: list[JsonObject]
    fields: list[tuple[int, str]]
    answers: tuple[str | None, ...] = _ANSWERS
    code_formats: tuple[str, ...] = _CODE_FORMATS


def dig(seed: int, until: int, spell: stamps.Spelling) -> Pools:
    """Grow the pools of a seed; `until` is the youngest moment a definition may bear."""
    rng = random.Random(f"pools:{seed}")
    devices = [(4_000 + n * 7, f"Gate {n} {rng.choice(_TOWNS)}") for n in range(40)]
    geocodings = [_geocoding(rng) for _ in range(100)]
    return Pools(
        seed=seed,
        tenant=rng.randrange(100, 999),
        uploads=[_upload(rng, devices) for _ in range(400)],
        geocodings=geocodings,
        devices=devices,
        locations=[{"id": 900 + n, "location": f"{rng.choice(_TOWNS)} terminal {n}"} for n in range(25)],
        workflows=_workflows(rng, until, spell),
        forms=[_form(rng, n) for n in range(14)],
        fields=[
            (70_000 + n, rng.choice(("PO number", "Weight", "Lot", "Gewicht", "Zone ")) + f" {n}") for n in range(18)
        ],
    )


def _upload(rng: random.Random, devices: list[tuple[int, str]]) -> JsonObject:
    """Return an upload with every key a list item shows but without what makes it unique."""
    kind = rng.choice(_UPLOAD_TYPES)
    damaged = kind == "snap" and rng.random() < 0.15
    damage = rng.choice(list(DAMAGE_TEXTS)) if damaged else None
    document = rng.choice(list(DOCUMENT_TYPES)) if kind == "document" else None
    device, nick = rng.choice(devices)
    place = rng.random()
    located = place < 0.8
    blank = "" if place < 0.9 else None
    return {
        "id": 0,
        "device_id": device,
        "device_nick": nick,
        "created_at": "",
        "scan_date_time": "",
        "upload_type": kind,
        "damage_type_id": damage,
        "damage_type_desc": DAMAGE_TEXTS[damage][0] if damage else None,
        "has_damage": int(damaged),
        "document_type_id": document,
        "document_type_desc": DOCUMENT_TYPES[document] if document else rng.choice((None, "")),
        "latitude": f"{rng.uniform(36, 60):.6f}" if located else blank,
        "longitude": f"{rng.uniform(-5, 25):.6f}" if located else blank,
        "image_name": "",
        "image_mime": "application/pdf" if kind == "document" and rng.random() < 0.3 else "image/jpeg",
        "comment": rng.choice((None, None, "", "left rear corner", "siehe Foto 2, größerer Riß", "=SUM(A1)", "漏れ")),
        "image_url": "",
        "image_thumb": "",
        "workflow_id": None,
        "workflow_description": None,
        "workflow_step_id": None,
        "workflow_step_description": None,
    }


def _geocoding(rng: random.Random) -> JsonObject:
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
    found = int(rng.random() < 0.9)
    return {
        "summary": {"queryTime": rng.randrange(3, 90), "numResults": found},
        "addresses": [address] * found,
    }


def _workflows(rng: random.Random, until: int, spell: stamps.Spelling) -> list[JsonObject]:
    """Return definitions; every third exists in two versions, of which the newer has one more step."""
    text = stamps.SPELLINGS[spell]
    flows: list[JsonObject] = []
    for n in range(9):
        created = until - rng.randrange(600, 1095) * stamps.DAY
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
            "created_at": text(created),
            "updated_at": text(created),
        }
        steps = [_step(rng, 300 + n, place) for place in range(rng.randrange(2, 6))]
        flows.append({**flow, "steps": steps})
        if n % 3 == 0:
            later = {"updated_at": text(created + 200 * stamps.DAY), "name": f"{flow['name']} (v2)"}
            flows.append({**flow, **later, "steps": [*steps, _step(rng, 300 + n, len(steps))]})
    return flows


def _step(rng: random.Random, flow: int, place: int) -> JsonObject:
    return {
        "id": flow * 100 + place,
        "workflow_id": flow,
        "order": place + 1,
        "description": rng.choice(("Photograph the seal", "Scan CMR", "Rückseite", "Sign ")) + f" {place + 1}",
        "type": rng.choice(("snap", "document", "form")),
        "allow_skip": rng.random() < 0.4,
        "platform_description": rng.choice(("Seal", "CMR", "Back side", "Signature")),
        "data": rng.choice((None, {"min": 1, "max": 4})),
        "deleted_at": None,
    }


def _form(rng: random.Random, n: int) -> JsonObject:
    count = rng.randrange(2, 8)
    questions = [{"id": 5_000 + n * 50 + q, "label": rng.choice(_QUESTIONS)} for q in range(count)]
    return {
        "id": 40 + n,
        "title": f"{rng.choice(('Gate check', 'Übergabe', 'Reefer'))} {n}",
        "questions": questions,
    }
