"""tools/check_notices.py WHEEL < BUILD_INFO: checks that a wheel has the notices, and a valid SBOM, of all compiled-in
components.

BUILD_INFO is `_core.build_info()` of the installed wheel, as JSON.
"""

from __future__ import annotations

import base64
import csv
import email
import hashlib
import io
import json
import sys
import zipfile
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

sys.path.insert(0, str(Path(__file__).parent))
from sbom import known_components


def main(path: Path) -> None:
    def require(holds: object, sentence: str) -> None:
        if not holds:
            raise SystemExit(f"check-wheel: {path.name} {sentence}")

    components = json.load(sys.stdin)["components"]
    with zipfile.ZipFile(path) as wheel:
        files = {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/")}
    (record,) = (name for name in files if name.endswith(".dist-info/RECORD"))
    folder = record.removesuffix("RECORD")

    listed = {name: digest for name, digest, _ in csv.reader(io.StringIO(files[record].decode()))}
    require(listed.keys() == files.keys(), f"and its RECORD differ in {sorted(listed.keys() ^ files.keys())}")
    for name, digest in listed.items():
        found = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).decode().rstrip("=")
        require(name == record or digest == f"sha256={found}", f"has a wrong digest for {name} in RECORD")

    metadata = email.message_from_bytes(files[f"{folder}METADATA"])
    for field in ("Author", "License-Expression", "Description-Content-Type", "Classifier"):
        require(metadata[field], f"has no {field} in its metadata")
    if not metadata["Project-URL"]:
        print(f"check-wheel: {path.name} names no URL; add [project.urls] to pyproject.toml before publishing it")
    for name in metadata.get_all("License-File"):
        require(f"{folder}licenses/{name}" in files, f"lacks its License-File {name}")
    known = known_components()
    require(components.keys() <= known.keys(), f"has components that licenses/components.toml lacks: {components}")
    for name in components:
        text = f"{folder}licenses/licenses/{known[name]['text']}"
        require(text in files, f"has {name} compiled in and no {text}")

    inside = files.get(f"{folder}sboms/robocache.cdx.json")
    require(inside, "has no SBOM in dist-info/sboms")
    beside = path.with_suffix(".cdx.json")
    require(beside.exists() and beside.read_bytes() == inside, f"and {beside.name} do not hold the same SBOM")
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(inside.decode())
    require(error is None, f"has an SBOM that is not valid CycloneDX 1.6: {error}")
    told = {part["name"]: part["version"] for part in json.loads(inside)["components"]}
    require(told == components, f"has {components} compiled in, and its SBOM says {told}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
