"""Small valid PDFs: pages of text lines in Helvetica, with a cross-reference table."""

_LINES = 46
_WIDTH = 96


def render_pdf(title: str, lines: list[str]) -> bytes:
    """Return a PDF on A4 pages; characters outside Windows-1252 become `?`."""
    wrapped = [line[at : at + _WIDTH] for line in lines for at in range(0, max(len(line), 1), _WIDTH)]
    pages = [wrapped[at : at + _LINES] for at in range(0, max(len(wrapped), 1), _LINES)]
    kids = " ".join(f"{5 + 2 * n} 0 R" for n in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        b"<< /Title " + _encode_string(title) + b" /Producer (emulator) >>",
    ]
    for number, page in enumerate(pages):
        content = _encode_page(title, page, f"{number + 1} / {len(pages)}")
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] "
            f"/Resources << /Font << /F1 3 0 R >> >> /Contents {6 + 2 * number} 0 R >>".encode()
        )
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content))
    return _assemble(objects)


def _encode_string(text: str) -> bytes:
    raw = text.encode("cp1252", "replace")
    return b"(" + raw.replace(b"\\", b"\\\\").replace(b"(", b"\\(").replace(b")", b"\\)") + b")"


def _encode_page(title: str, lines: list[str], foot: str) -> bytes:
    parts = [b"BT /F1 14 Tf 50 790 Td " + _encode_string(title) + b" Tj ET", b"BT /F1 9 Tf 50 765 Td 15 TL"]
    parts += [_encode_string(line) + b" Tj T*" for line in lines]
    parts += [b"ET", b"BT /F1 8 Tf 280 30 Td " + _encode_string(foot) + b" Tj ET"]
    return b"\n".join(parts)


def _assemble(objects: list[bytes]) -> bytes:
    # The high bytes of the second line mark the file as binary for transfer programs.
    body = bytearray(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n")
    offsets = []
    for number, content in enumerate(objects, 1):
        offsets.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    start = len(body)
    body += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    for offset in offsets:
        body += b"%010d 00000 n \n" % offset
    body += b"trailer\n<< /Size %d /Root 1 0 R /Info 4 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start)
    return bytes(body)
