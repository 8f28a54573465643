"""What the wheel says of itself: whose code is compiled into it, under which licences."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from robocache import _core

REPOSITORY = Path(__file__).parents[2]
BUILD = REPOSITORY / "build/dev"
sys.path.insert(0, str(REPOSITORY / "tools"))
from sbom import bill_of_materials, known_components  # noqa: E402

DEBIAN = {
    "zstd": "libzstd-dev",
    "lz4": "liblz4-dev",
    "zlib": "zlib1g-dev",
    "xxHash": "libxxhash-dev",
    "Highway": "libhwy-dev",
    "nlohmann-json": "nlohmann-json3-dev",
}
# Their headers become code in every C++ program, and the licences of what they become ask for no notice.
TOOLCHAIN = re.compile(
    r"(libc6|linux-libc|libstdc\+\+-\d+|libgcc-\d+|libclang-common-\d+|libpython3[.\d]*|python3[.\d]*)-dev"
)


def ninja(*arguments: str) -> str:
    program = shutil.which("ninja")
    if program is None or not (BUILD / "build.ninja").exists():
        pytest.skip("build/dev was not built by ninja")
    return subprocess.run([program, "-C", str(BUILD), *arguments], capture_output=True, text=True, check=True).stdout


def test_every_component_has_its_notice_and_every_notice_its_component():
    texts = {entry["text"] for entry in known_components().values()}
    assert texts == {file.name for file in (REPOSITORY / "licenses").glob("*.txt")}


def test_the_metadata_names_every_licence():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    licences = {
        "Apache-2.0",
        *(part for entry in known_components().values() for part in entry["license"].split(" AND ")),
    }
    assert project["license"] == " AND ".join(sorted(licences))
    assert project["license-files"] == ["LICENSE", "licenses/*.txt"]


def test_the_versions_are_those_that_debian_installed():
    components = _core.build_info()["components"]
    assert components.keys() <= known_components().keys()
    assert components["nanobind"] == version("nanobind")
    if shutil.which("dpkg-query") is None:
        pytest.skip("not a Debian system")
    if "ROBOCACHE_CARRIED" in os.environ:
        pytest.skip("the module was built on another machine")
    for name, package in DEBIAN.items():
        told = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True).stdout
        assert re.match(r"(?:\d+:)?(?:.*\+really)?([\d.]*\d)", told)[1] == components[name], name


def test_the_compiler_read_no_header_that_is_not_listed():
    """Ninja knows every header that the compiler read, and dpkg whose it is."""
    headers = set()
    for block in ninja("-t", "deps").split("\n\n"):
        target, *lines = block.strip().splitlines() or [""]
        if re.match(r"(CMakeFiles/robocache|python/)", target):
            headers.update(str((BUILD / line.strip()).resolve()) for line in lines)
    assert headers
    foreign = {header for header in headers if not header.startswith(f"{REPOSITORY}/") or "/site-packages/" in header}
    listed = {name: re.compile(entry["headers"]) for name, entry in known_components().items()}
    owners = {
        header: next((name for name, regex in listed.items() if regex.search(header)), None) for header in foreign
    }
    compiled_in = _core.build_info()["components"].keys()
    assert set(owners.values()) - {None} == compiled_in - {"DLPack"}, "which is written down, not included"

    unknown = [header for header, owner in owners.items() if owner is None and "/include/python3" not in header]
    if shutil.which("dpkg-query") is None:
        pytest.skip("not a Debian system")
    found = subprocess.run(["dpkg-query", "-S", *unknown], capture_output=True, text=True)
    packages = dict(reversed(line.split(": ", 1)) for line in found.stdout.splitlines())
    stray = {header: packages.get(header) for header in unknown if not TOOLCHAIN.match(packages.get(header, ""))}
    assert not stray, "licenses/components.toml lists none of these"


def test_the_linker_took_no_library_that_is_not_listed():
    (module,) = re.findall(r"^(\S*_core\S*\.so): \S*LINKER", ninja("-t", "targets", "all"), re.MULTILINE)
    command = ninja("-t", "commands", "-s", module)
    paths = [BUILD / archive for archive in re.findall(r"(?<=\s)[^-\s]\S*\.a(?=\s)", command)]
    archives = {path.name for path in paths if path.read_bytes() != b"!<arch>\n"}  # glibc's librt.a is empty
    listed = {archive: name for name, entry in known_components().items() for archive in entry.get("archives", ())}
    assert archives - listed.keys() == {"librobocache.a"}
    assert {listed[archive] for archive in archives & listed.keys()} <= _core.build_info()["components"].keys()


def test_the_sbom_is_valid_and_lists_every_component():
    info = _core.build_info()
    bill = bill_of_materials(info, "robocache.whl", 1_700_000_000)
    assert {part["name"]: part["version"] for part in bill["components"]} == info["components"]
    assert bill["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    assert bill == bill_of_materials(info, "robocache.whl", 1_700_000_000)
    validation = pytest.importorskip("cyclonedx.validation.json")
    schema = pytest.importorskip("cyclonedx.schema")
    assert validation.JsonStrictValidator(schema.SchemaVersion.V1_6).validate_str(json.dumps(bill)) is None


def test_a_component_without_a_licence_is_refused():
    info = _core.build_info() | {"components": {"left-pad": "1.3.0"}}
    with pytest.raises(SystemExit, match=r"licenses/components\.toml does not list left-pad; add them there"):
        bill_of_materials(info, "robocache.whl", 0)


def test_the_module_says_nothing_of_where_it_was_built():
    """Two builds at different paths are equal byte for byte: `make reproduce`."""
    module = Path(_core.__file__).read_bytes()
    assert str(REPOSITORY).encode() not in module
