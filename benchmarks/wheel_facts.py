"""Make the facts of wheels that ship: `wheel_facts.py WHEEL …` writes data/facts.json.gz.

Of the symbols that torch and NCCL define only those are kept that another of these wheels asks
for; what it asks for in vain is kept as lacking.
"""

from __future__ import annotations

import gzip
import json
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

from packaging.utils import parse_wheel_filename

from alula.machine.records import to_json
from alula.stack.catalog import digest_of
from alula.stack.wheel_facts import Contents, read_contents

_TARGET = Path(__file__).parent.parent / "src/alula/stack/data/facts.json.gz"


def main() -> None:
    found: dict[str, tuple[str, Contents]] = {}
    for path in sorted(map(Path, sys.argv[1:])):
        package = parse_wheel_filename(path.name)[0]
        with zipfile.ZipFile(path) as archive:
            contents = read_contents(package, path.name, archive)
        found[digest_of(path)] = (package, contents)
        print(path.name, len(contents.libraries), contents.architectures(), flush=True)
    asked = {
        symbol
        for package, each in found.values()
        for library in each.libraries
        for symbol in (
            *library.nccl_symbols,
            *(library.torch_symbols if package != "torch" else ()),
        )
    }
    facts = {digest: to_json(_reduced(*each, asked)) for digest, each in found.items()}
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    _TARGET.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(_TARGET, _TARGET.stat().st_size)


def _reduced(package: str, contents: Contents, asked: set[str]) -> Contents:
    if package != "torch" and "nccl" not in package:
        return contents
    offers = set(contents.offers)
    lacks = tuple(sorted(asked - offers))
    if package == "torch":  # what its own libraries ask of each other is there
        own = tuple(replace(library, torch_symbols=()) for library in contents.libraries)
        contents = replace(contents, libraries=own)
    return replace(contents, offers=tuple(sorted(asked & offers)), lacks=lacks, whole=False)


if __name__ == "__main__":
    main()
