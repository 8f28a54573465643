"""python tools/project_url.py https://github.com/OWNER/robocache: writes the address of the project into its files.

The links of the README become absolute, its image too, because PyPI shows the page without the files beside it;
pyproject.toml gets [project.urls], mkdocs.yml its repo_url. A second run changes nothing.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def write(url: str, root: Path = ROOT) -> None:
    url = url.rstrip("/")
    if not re.fullmatch(r"https://[\w.-]+(/[\w.-]+)+", url):
        sys.exit(f"project_url: {url} is not an address such as https://github.com/OWNER/robocache")
    readme = root / "README.md"
    text = re.sub(r"(!\[[^]]*\])\((?!https?://|#)([^)]+)\)", rf"\1({url}/raw/HEAD/\2)", readme.read_text())
    text = re.sub(r"(?<!!)(\[[^]]*\])\((?!https?://|#)([^)]+)\)", rf"\1({url}/blob/HEAD/\2)", text)
    readme.write_text(text)
    project = root / "pyproject.toml"
    if "[project.urls]" not in project.read_text():
        urls = {"Repository": url, "Issues": f"{url}/issues", "Changelog": f"{url}/blob/HEAD/CHANGELOG.md"}
        lines = "".join(f'{name} = "{address}"\n' for name, address in urls.items())
        before, after = project.read_text().split("[project.optional-dependencies]\n")
        project.write_text(f"{before}[project.urls]\n{lines}\n[project.optional-dependencies]\n{after}")
    site = root / "mkdocs.yml"
    if "repo_url:" not in site.read_text():
        site.write_text(site.read_text().replace("docs_dir: docs\n", f"repo_url: {url}\ndocs_dir: docs\n"))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write(sys.argv[1])
