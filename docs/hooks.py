"""What `make docs` does beyond mkdocs: the README as first page, the notebooks as pages with their
outputs and formulas, the flags of every script as tables, the reference under the names that users
import.

A link to a file outside these becomes its text: the site has no such page.
"""

import ast
import json
import os
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
    "make_classifier run_glue sweep_exits change_config export_onnx push_to_hub run_pretraining "
    "share_layers run_parity reproduce download_glue_data "
    "convert_albert_original_tf_checkpoint_to_pytorch"
).split()
FLAG = re.compile(r"^  (-.+?)(?:  +(.*))?$", re.M)  # of --help: the flag with its values, its help


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
    files.append(File.generated(config, "command_line.md", content=command_line()))
    return files


def command_line() -> str:
    """Turn every script's --help into a section: what it does, its flags with their defaults."""
    parts = [
        "# Command line",
        "Look up any flag of any script, with its default, as `--help` has it.",
    ]
    for script in SCRIPTS:
        command = [str(ROOT / ".venv/bin/python"), str(ROOT / f"{script}.py"), "--help"]
        wide = {**os.environ, "COLUMNS": "9999"}
        shown = subprocess.run(command, env=wide, capture_output=True, text=True, check=True)
        about, options, flags = shown.stdout.partition("\noptions:\n")
        parts += [f"## {script}.py", f"```text\n{about.strip()}\n```"]
        groups = re.split(r"^(\w.*):$", options + flags, flags=re.M)
        for name, text in zip(groups[1::2], groups[2::2], strict=True):
            text = re.sub(r"\n {24}", "  ", text)
            rows = [row_of(*row) for row in FLAG.findall(text) if not row[0].startswith("-h,")]
            if rows:
                intro = " ".join(FLAG.sub("", text).split())
                table = "\n".join(["| flag | meaning |", "|---|---|", *rows])
                parts += [f"### {name}", intro, table]
    return "\n\n".join(parts)


def row_of(text: str, meaning: str) -> str:
    """A row of a table; `--seed SEED` without its SEED, which says nothing new."""
    text = re.sub(r"(\S+) \[\1 \.\.\.\]", r"\1 …", text)  # several values
    text = text.replace(f" {re.match('-*([a-z_0-9]+)', text)[1].upper()}", "")
    if choices := re.search(r" {(.+?)}", text):
        meaning += f"; one of {choices[1].replace(',', ', ')}"
        text = re.sub(r" {.+?}( …)?", "", text)
    meaning = re.sub(r"([|*<])", r"\\\1", meaning)
    return f"| `{text}` | {meaning} |"


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


def public_names() -> set[str]:
    """The names that `from elbert import …` finds."""
    body = ast.parse((ROOT / "modeling/public.py").read_text(encoding="utf-8")).body
    imports = [alias.name for node in body if hasattr(node, "names") for alias in node.names]
    return {*imports, *(node.name for node in body if hasattr(node, "name"))}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    uri = page.file.src_uri
    if page.is_homepage:
        page.meta |= {"hide": ["navigation"], "title": config.site_description}
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

    def under_its_import(reference: re.Match) -> str:
        name = reference[2]
        path = f"elbert.{name}" if name in public_names() else reference[1]
        return f"{reference[0]}\n    options:\n      heading: {path}\n      toc_label: {name}"

    markdown = re.sub(r"^::: (elbert\S*?(\w+))$", under_its_import, markdown, flags=re.M)
    return LINK.sub(on_the_site, markdown)


GROUPED = re.compile(r"<code>(\w+), [\w, ]+</code>(?:(?!</tr>).)*?<em>required</em>", re.S)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Give parameters that share a line of the docstring the default that their signature shows."""

    def with_default(row: re.Match) -> str:
        before = re.sub("<.*?>", "", html[: row.start()])
        found = re.findall(rf"\b{row[1]}: .* = (\w+),$", before, re.M)
        return row[0].replace("<em>required</em>", f"<code>{found[-1]}</code>") if found else row[0]

    return GROUPED.sub(with_default, html)


def on_post_build(config: MkDocsConfig) -> None:
    """Without an address of the site there is no map of it: an empty one misleads."""
    if not config.site_url:
        for path in Path(config.site_dir).glob("sitemap.xml*"):
            path.unlink()
