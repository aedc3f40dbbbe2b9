"""Wheels and hosts that lie: a reason or no facts, never a crash."""

from __future__ import annotations

import io
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packaging.version import Version

from alula.errors import MachineError
from alula.stack.archive import DAMAGE, open_wheel, read_metadata
from alula.stack.catalog import Catalog, Target
from alula.stack.indexes import Index
from alula.stack.listing import WheelFile
from alula.stack.reading import Reader
from alula.stack.wheel_facts import FactStore, read_contents
from alula.stack.wheels import Wheels
from asking import Ask
from elf_files import write_container, write_image, write_library
from loopback_index import Site, make_wheel

TAG = "cp312-cp312-manylinux_2_28_x86_64"


def torch_wheel() -> bytes:
    files = {
        "torch/lib/libtorch.so": write_library(write_container(write_image(120))),
        "torch/__init__.py": "x = 1\n" * 50,
    }
    return make_wheel("torch", "2.9.1", ["numpy"], files, TAG).data


def file_of(site: Site, data: bytes) -> tuple[Catalog, WheelFile]:
    name = f"torch-2.9.1-{TAG}.whl"
    site.put("/simple/torch/", f'<a href="/files/{name}">{name}</a>'.encode(), "text/html")
    site.put(f"/files/{name}", data)
    catalog = Catalog(Reader(), [Index("own", f"{site.url}/simple/")], Target())
    (file,) = catalog.offered(catalog.listing(catalog.indexes[0], "torch")).values()
    return catalog, file


SOUND = torch_wheel()
damage = st.one_of(
    st.integers(0, len(SOUND)).map(lambda size: SOUND[:size]),
    st.tuples(st.integers(0, len(SOUND) - 1), st.binary(min_size=1, max_size=40)).map(
        lambda cut: SOUND[: cut[0]] + cut[1] + SOUND[cut[0] + len(cut[1]) :]
    ),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(damage)
def test_a_damaged_wheel_has_a_reason_or_is_read(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"torch-2.9.1-{TAG}.whl")
        path.write_bytes(data)
        file = WheelFile(
            "own", "torch", Version("2.9.1"), (), frozenset(), path.name, path.as_uri()
        )
        with suppress(MachineError, *DAMAGE):
            read_metadata(Reader(), file)
            with open_wheel(Reader(), file) as archive:
                read_contents("torch", file.filename, archive)


def test_a_wheel_whose_library_is_damaged_is_not_looked_into(site: Site, tmp_path: Path) -> None:
    stream = io.BytesIO(SOUND)
    with zipfile.ZipFile(stream) as archive:
        at = archive.getinfo("torch/lib/libtorch.so").header_offset + 60
    catalog, file = file_of(site, SOUND[:at] + b"\xff" * 8 + SOUND[at + 8 :])
    chosen = Wheels(catalog, FactStore(tmp_path), kept=tmp_path).look([(file, "")])["torch"]
    assert chosen.contents is None
    assert chosen.paths is not None


def test_a_host_that_gives_other_pieces_than_it_says(site: Site) -> None:
    catalog, file = file_of(site, SOUND)
    site.wrong_pieces = True
    with pytest.raises(MachineError, match="cannot be read"):
        read_metadata(catalog.reader, file)


def test_a_page_that_breaks_off_is_an_index_that_is_down(site: Site) -> None:
    site.put("/simple/torch/", b'<a href="x">', "text/html")
    site.cut_short = True
    page = Reader(seconds=2).page(Index("own", f"{site.url}/simple/"), "torch")
    assert (page.state, page.why) == ("down", "it broke off")


def test_a_file_that_matches_no_stated_hash_is_not_taken(
    site: Site, ask: Ask, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tmp_path = tmp_path_factory.mktemp("kept")
    made = make_wheel("torch", "2.9.1", [], {"torch/lib/libtorch.so": write_library()}, TAG)
    site.put_releases("/whl/", [made], {made.filename: ["a" * 64]})
    page = site.answers["/whl/torch/"][1].replace(made.sha256.encode(), b"b" * 64)
    site.put("/whl/torch/", page, "text/html")
    catalog = Catalog(Reader(), [Index("own", f"{site.url}/whl/")], Target())
    (file,) = catalog.offered(catalog.listing(catalog.indexes[0], "torch")).values()
    chosen = Wheels(catalog, FactStore(None), kept=tmp_path).look([(file, "")])["torch"]
    assert chosen.file.sha256 is None
    assert list(tmp_path.iterdir()) == []
    told = ask("--index", f"own={site.url}/whl/", "--want", "torch", "--json")
    assert told.code == 3
    assert "has none of the hashes that own states" in told.json["verdict"]


def test_a_wheel_that_was_fetched_whole_is_kept_for_building(site: Site, tmp_path: Path) -> None:
    made = make_wheel("torch", "2.11.0.dev1", [], {"torch/lib/libtorch.so": write_library()}, TAG)
    site.put_pytorch("/whl/", [made], hashed=False)
    catalog = Catalog(Reader(), [Index("own", f"{site.url}/whl/")], Target())
    (file,) = catalog.offered(catalog.listing(catalog.indexes[0], "torch")).values()
    chosen = Wheels(catalog, FactStore(None), kept=tmp_path).look([(file, "")])["torch"]
    assert chosen.file.sha256 == made.sha256
    assert (tmp_path / made.sha256 / made.filename).read_bytes() == made.data
