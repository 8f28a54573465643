"""tools/sbom.py WHEEL < BUILD_INFO: writes a CycloneDX SBOM into the wheel's dist-info/sboms (PEP 770) and beside it.

BUILD_INFO is `_core.build_info()` of that wheel, as JSON: it has the versions of all that is compiled in, and
licenses/components.toml has the licences. The time in it is SOURCE_DATE_EPOCH, so equal inputs give equal bytes.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import tomllib
import uuid
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]


def known_components() -> dict[str, dict[str, Any]]:
    table = tomllib.loads((REPOSITORY / "licenses/components.toml").read_text(encoding="utf-8"))
    return {entry["name"]: entry for entry in table["component"]}


def describe(entry: dict[str, Any], version: str) -> dict[str, Any]:
    purl = entry["purl"].format(version=version)
    return {
        "type": "library",
        "bom-ref": purl,
        "name": entry["name"],
        "version": version,
        "licenses": [{"expression": entry["license"]}],
        "purl": purl,
        "externalReferences": [{"type": "website", "url": entry["url"]}],
    }


def bill_of_materials(build_info: dict[str, Any], wheel: str, seconds: int) -> dict[str, Any]:
    """The SBOM of a wheel of this name, built from the commit of this time (seconds since 1970)."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    known = known_components()
    versions = build_info["components"]
    if unknown := versions.keys() - known.keys():
        raise SystemExit(f"sbom: licenses/components.toml does not list {', '.join(sorted(unknown))}; add them there")
    parts = [describe(entry, versions[name]) for name, entry in known.items() if name in versions]
    whole = f"pkg:pypi/{project['name']}@{project['version']}"
    facts = ("commit", "compiler", "cuda", "cuda_architectures", "simd_targets")
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, whole + wheel + json.dumps(build_info))}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(),
            "lifecycles": [{"phase": "build"}],
            "component": {
                "type": "library",
                "bom-ref": whole,
                "name": project["name"],
                "version": project["version"],
                "description": project["description"],
                "licenses": [{"expression": project["license"]}],
                "purl": whole,
                "properties": [{"name": f"robocache:{fact}", "value": str(build_info[fact])} for fact in facts],
            },
        },
        "components": parts,
        "dependencies": [
            {"ref": whole, "dependsOn": sorted(part["bom-ref"] for part in parts)},
            *({"ref": part["bom-ref"]} for part in parts),
        ],
    }


def main(wheel: Path) -> None:
    from auditwheel.wheeltools import InWheelCtx  # rewrites RECORD, and packs in a fixed order

    bill = bill_of_materials(json.load(sys.stdin), wheel.name, int(os.environ["SOURCE_DATE_EPOCH"]))
    text = json.dumps(bill, indent=2) + "\n"
    with InWheelCtx(wheel, wheel) as unpacked:
        (metadata,) = unpacked.path.glob("*.dist-info")
        (metadata / "sboms").mkdir(exist_ok=True)
        (metadata / "sboms/robocache.cdx.json").write_text(text, encoding="utf-8")
        for file in unpacked.path.rglob("*"):  # the same modes under any umask
            file.chmod(0o755 if file.is_dir() or file.suffix == ".so" else 0o644)
    wheel.with_suffix(".cdx.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
