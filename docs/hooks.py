"""What `make docs` does beyond mkdocs: the README as first page, and a docstring for every entry.

A link to a file outside docs/ becomes its text: the site has no such page.
"""

import re
from pathlib import Path

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[([^\]]+)\]\(((?!https?:)[^)#]+)[^)]*\)")
ENTRY = re.compile(r"^::: (\S+)", re.M)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    readme = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=readme))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    for name in ENTRY.findall(markdown):
        check_docstring(name)
    uri = page.file.src_uri
    folder = ROOT if uri == "index.md" else (ROOT / "docs" / uri).parent

    def inside(link: re.Match) -> str:
        target = (folder / link[2]).resolve()
        outside = target.exists() and not target.is_relative_to(ROOT / "docs")
        return link[1] if outside else link[0]

    return LINK.sub(inside, markdown)


def check_docstring(name: str) -> None:
    """Raise for an entry of the reference, or a method that it shows, without a docstring."""
    package, _, path = name.partition(".")
    try:
        entry = griffe.load(package, search_paths=[ROOT])[path]
    except KeyError as error:
        raise PluginError(f"{name}, an entry of docs/api, does not exist") from error
    shown = [entry.members[n] for n in ("forward", "from_pretrained") if n in entry.members]
    for found in (entry, *shown):
        if not found.has_docstring:
            raise PluginError(f"{found.path} has no docstring ({found.filepath}:{found.lineno})")
