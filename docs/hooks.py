"""What `make docs` does beyond mkdocs: the README as first page, the notebooks as pages with their
outputs and formulas, the --help of every script, and links between all these.

A link to a file outside these becomes its text: the site has no such page.
"""

import json
import posixpath
import re
import subprocess
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[([^\]]+)\]\(((?!https?:)[^)#]+)(#[^)]*)?\)")
GENERATED = {ROOT / "README.md": "index.md"} | {
    path: f"notebooks/{path.stem}.md" for path in sorted(ROOT.glob("notebooks/*.ipynb"))
}

SCRIPTS = (
    "make_classifier classify run_glue sweep_exits change_config export_onnx push_to_hub "
    "run_pretraining "
    "share_layers run_parity reproduce download_glue_data "
    "convert_albert_original_tf_checkpoint_to_pytorch"
).split()


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, uri in GENERATED.items():
        content = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            content = page_of(json.loads(content))
        files.append(File.generated(config, uri, content=content))
    files.append(File.generated(config, "command_line.md", content=command_line()))
    return files


def command_line() -> str:
    """Show every script's --help: what it does, its flags with their defaults."""
    parts = [
        "---\nhide: [navigation]\n---",  # lines of 100 characters need its width
        "# Command line",
        "Look up any flag of any script, with its default, as `--help` has it.",
    ]
    for script in SCRIPTS:
        command = [str(ROOT / ".venv/bin/python"), str(ROOT / f"{script}.py"), "--help"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True)
        parts += [f"## {script}.py", f"```text\n{shown.stdout.strip()}\n```"]
    return "\n\n".join(parts)


def page_of(notebook: dict) -> str:
    """A notebook's texts, code, and what the code printed and drew, as Markdown; no hidden code."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            source = re.sub(r"(\$\$?)(.+?)\1", formula, source)
            parts.append(source.replace("<details>", '<details markdown="1">'))
        elif not cell["metadata"].get("jupyter", {}).get("source_hidden"):
            language = "bash" if source.startswith("%%bash") else "python"
            parts.append(f"```{language}\n{source.removeprefix('%%bash').strip()}\n```")
        for output in cell.get("outputs", ()):
            if output["output_type"] == "stream":
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
            elif png := output["data"].get("image/png"):
                data = "".join(png).replace("\n", "")
                parts.append(f'<img alt="what the code draws" src="data:image/png;base64,{data}">')
    return "\n\n".join(parts)


def formula(found: re.Match) -> str:
    """TeX between dollars as MathML, which browsers draw by themselves."""
    if found[1] == "$$":
        return convert(found[2], display="block")
    return f"<span>{convert(found[2])}</span>"  # Markdown takes a line's first <math> for a block


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    uri = page.file.src_uri
    if page.is_homepage:
        page.meta |= {"hide": ["navigation"], "title": config.site_description}
    source = {site: path for path, site in GENERATED.items()}.get(uri, ROOT / "docs" / uri)

    def on_the_site(link: re.Match) -> str:
        target, docs = (source.parent / link[2]).resolve(), ROOT / "docs"
        if target in GENERATED:
            page_uri = GENERATED[target]
        elif target.is_relative_to(docs):
            page_uri = target.relative_to(docs).as_posix()
        else:
            return link[1] if target.exists() else link[0]
        return f"[{link[1]}]({posixpath.relpath(page_uri, posixpath.dirname(uri))}{link[3] or ''})"

    return LINK.sub(on_the_site, markdown)
