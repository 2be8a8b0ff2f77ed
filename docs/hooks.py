"""What `make docs` does beyond mkdocs: the README as first page, the notebooks as pages with their
outputs.

A link to a file outside these becomes its text: the site has no such page.
"""

import json
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[([^\]]+)\]\(((?!https?:)[^)#]+)(#[^)]*)?\)")
GENERATED = {ROOT / "README.md": "index.md"} | {
    path: f"notebooks/{path.stem}.md" for path in sorted(ROOT.glob("notebooks/*.ipynb"))
}


def on_startup(command: str, dirty: bool) -> None:
    """Let the reference find modeling/ under the name that it has once installed."""
    installed = ROOT / "out/reference/elbert"
    installed.parent.mkdir(parents=True, exist_ok=True)
    if not installed.exists():
        installed.symlink_to(ROOT / "modeling")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, uri in GENERATED.items():
        content = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            content = page_of(json.loads(content))
        files.append(File.generated(config, uri, content=content))
    return files


def page_of(notebook: dict) -> str:
    """A notebook's texts, code, and what the code printed and drew, as Markdown."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            if output["output_type"] == "stream":
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
            elif png := output["data"].get("image/png"):
                data = "".join(png).replace("\n", "")
                parts.append(f'<img alt="what the code draws" src="data:image/png;base64,{data}">')
    return "\n\n".join(parts)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    uri = page.file.src_uri
    source = {site: path for path, site in GENERATED.items()}.get(uri, ROOT / "docs" / uri)

    def on_the_site(link: re.Match) -> str:
        target, docs = (source.parent / link[2]).resolve(), ROOT / "docs"
        if target in GENERATED:
            found = GENERATED[target]
        elif target.is_relative_to(docs):
            found = target.relative_to(docs).as_posix()
        else:
            return link[1] if target.exists() else link[0]
        return f"[{link[1]}]({posixpath.relpath(found, posixpath.dirname(uri))}{link[3] or ''})"

    return LINK.sub(on_the_site, markdown)
