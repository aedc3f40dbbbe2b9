"""Reading indexes: formats, warts, time-outs, what is kept, and that no credential gets out."""

from __future__ import annotations

import json
import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest

from alula.errors import UsageError
from alula.stack.catalog import Catalog, Target
from alula.stack.indexes import Index, binding_of, chosen_indexes, known_indexes
from alula.stack.listing import Listing, read_listing
from alula.stack.reading import Reader
from asking import Ask
from loopback_index import Made, Site, make_wheel

TAG = "cp312-cp312-manylinux_2_28_x86_64"


def listing_of(site: Site, project: str, root: str = "/simple/") -> Listing:
    index = Index("own", f"{site.url}{root}")
    return read_listing(index, project, Reader().page(index, project))


def catalog_of(site: Site, *wheels: Made, target: Target | None = None) -> Catalog:
    site.put_json("/simple/", wheels)
    index = Index("own", f"{site.url}/simple/")
    return Catalog(Reader(), [index], target or Target())


def offered(catalog: Catalog, project: str) -> dict[str, str]:
    listing = catalog.bound(project, "")
    found = catalog.offered(listing).values() if listing else ()
    return {str(file.version): file.filename for file in found}


def test_both_formats_say_the_same(site: Site) -> None:
    wheel = make_wheel("torch", "2.9.1+cu130", tag=TAG)
    site.put_json("/json/", [wheel])
    site.put_pytorch("/html/", [wheel])
    (first,), (second,) = (listing_of(site, "torch", root).files for root in ("/json/", "/html/"))
    assert first.filename == second.filename == wheel.filename
    assert first.version == second.version
    assert first.sha256 == second.sha256 == wheel.sha256
    assert second.url == f"{site.url}/html/torch-2.9.1%2Bcu130-{TAG}.whl"
    assert second.has_metadata and not first.has_metadata
    assert first.uploaded and not second.uploaded


def test_a_nightly_has_no_hash(site: Site) -> None:
    site.put_pytorch("/whl/", [make_wheel("torch", "2.11.0.dev20260219", tag=TAG)], hashed=False)
    (file,) = listing_of(site, "torch", "/whl/").files
    assert file.sha256 is None


def test_a_file_listed_with_several_hashes_is_told(site: Site) -> None:
    wheel = make_wheel("sgl-kernel", "0.3.21", tag=TAG)
    site.put_releases("/sgl/", [wheel], {wheel.filename: ["a" * 64, "b" * 64]})
    listing = listing_of(site, "sgl-kernel", "/sgl/")
    (file,) = listing.files
    assert file.rivals == ("a" * 64, "b" * 64, wheel.sha256)
    assert listing.odd == (f"{wheel.filename} is listed with 3 different hashes",)


def test_names_that_are_none_are_left_out_and_told(site: Site) -> None:
    links = '<a href="x-1.0-py3.whl">x-1.0-py3.whl</a><a href="y-1-py3-none-any.whl">'
    links += 'y-1-py3-none-any.whl</a><a href="x-1.0.tar.gz">x-1.0.tar.gz</a>'
    site.put("/simple/x/", links.encode(), "text/html")
    listing = listing_of(site, "x")
    assert listing.files == ()
    assert listing.sources == 1
    assert listing.odd == (
        "x-1.0-py3.whl has no name of a wheel",
        "y-1-py3-none-any.whl is listed under x",
    )


def test_only_what_fits_the_target_is_offered(site: Site) -> None:
    catalog = catalog_of(
        site,
        make_wheel("x", "1", tag="cp310-abi3-manylinux2014_x86_64"),
        make_wheel("x", "2", tag="cp313-cp313-manylinux_2_28_x86_64"),
        make_wheel("x", "3", tag="cp312-cp312-manylinux_2_35_x86_64"),
        make_wheel("x", "4", tag="cp312-cp312-win_amd64"),
        make_wheel("x", "5", requires_python=">=3.13"),
        make_wheel("x", "6", tag="cp312-cp312-manylinux_2_28_aarch64"),
    )
    assert set(offered(catalog, "x")) == {"1"}


def test_a_build_tag_beats_the_file_without(site: Site) -> None:
    catalog = catalog_of(
        site,
        make_wheel("torch", "2.10.0", tag=TAG),
        make_wheel("torch", "2.10.0", tag=TAG, build="3"),
        make_wheel("torch", "2.10.0", tag=TAG, build="12"),
    )
    assert offered(catalog, "torch") == {"2.10.0": f"torch-2.10.0-12-{TAG}.whl"}


def test_a_package_is_bound_to_one_index() -> None:
    general, own = Index("pypi", "http://a/"), Index("cu130", "http://b/", "cu130", ("torch",))
    assert binding_of("torch", "cu130", [general, own]) == [own, general]
    assert binding_of("torch", "cu128", [general, own]) == [general]
    assert binding_of("numpy", "cu130", [general, own]) == [general]


def test_an_index_that_has_the_package_is_not_asked_beside_another(site: Site) -> None:
    site.put_json("/pypi/", [make_wheel("torch", "2.10.0", tag=TAG)])
    site.put_pytorch("/whl/", [make_wheel("torch", "2.9.1+cu130", tag=TAG)])
    indexes = [
        Index("pypi", f"{site.url}/pypi/"),
        Index("cu130", f"{site.url}/whl/", "cu130", ("torch",)),
    ]
    listing = Catalog(Reader(), indexes, Target()).bound("torch", "cu130")
    assert listing is not None
    assert listing.index.name == "cu130"
    assert site.asked == ["/whl/torch/"]


def test_indexes_that_are_given_stand_alone() -> None:
    given = chosen_indexes(["pytorch-cu130=http://127.0.0.1:9/whl/", "pypi"])
    assert [index.name for index in given] == ["pytorch-cu130", "pypi"]
    assert given[0].cuda == "cu130" and "torch" in given[0].packages
    assert len(chosen_indexes([])) == len(known_indexes())


@pytest.mark.parametrize("text", ["nobody", "x=ftp://host/", "x=no-such-folder"])
def test_what_is_no_index_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        chosen_indexes([text])


def test_a_page_is_read_once_and_then_kept(site: Site, tmp_path: Path) -> None:
    site.put_json("/simple/", [make_wheel("x", "1")])
    index = Index("own", f"{site.url}/simple/")
    first = Reader(tmp_path).page(index, "x")
    second = Reader(tmp_path).page(index, "x")
    assert (first.state, second.state) == ("read", "cached")
    assert first.sha256 == second.sha256 and first.read_at == second.read_at
    assert site.asked == ["/simple/x/"]


def test_offline_uses_what_was_kept_and_asks_nobody(site: Site, tmp_path: Path) -> None:
    site.put_json("/simple/", [make_wheel("x", "1"), make_wheel("y", "1")])
    index = Index("own", f"{site.url}/simple/")
    Reader(tmp_path).page(index, "x")
    site.asked.clear()
    reader = Reader(tmp_path, offline=True)
    assert reader.page(index, "x").state == "cached"
    assert reader.page(index, "y").state == "down"
    assert site.asked == []


def test_an_index_that_is_down_is_asked_once() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/"
    reader, index = Reader(), Index("gone", address)
    page = reader.page(index, "x")
    assert (page.state, page.why) == ("down", "it cannot be reached")
    assert reader.page(index, "y").state == "down"


def test_an_index_that_hangs_is_given_up() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        index = Index("slow", f"http://127.0.0.1:{silent.getsockname()[1]}/")
        page = Reader(seconds=0.3).page(index, "x")
    assert (page.state, page.why) == ("down", "it did not answer in time")


def test_a_folder_is_an_index(tmp_path: Path) -> None:
    wheel = make_wheel("x", "1")
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / wheel.filename).write_bytes(wheel.data)
    (tmp_path / "x/index.html").write_text(f'<a href="{wheel.filename}">{wheel.filename}</a>')
    (index,) = chosen_indexes([f"own={tmp_path}"])
    catalog = Catalog(Reader(offline=True), [index], Target())
    (file,) = catalog.offered(catalog.listing(index, "x")).values()
    assert catalog.metadata(file).version == "1"


@pytest.mark.parametrize("ranges", [True, False])
def test_metadata_is_read_with_and_without_ranges(site: Site, ranges: bool) -> None:
    site.without_ranges = () if ranges else ("/files/",)
    big = {"x/data.bin": bytes(range(256)) * 2000}
    wheel = make_wheel("x", "1+cu130", ["torch==2.9.1"], big, inner="1")
    catalog = catalog_of(site, wheel)
    listing = catalog.bound("x", "")
    assert listing is not None
    (file,) = catalog.offered(listing).values()
    assert catalog.metadata(file).requires == ("torch==2.9.1",)
    assert catalog.metadata(file).version == "1"


def test_a_day_cuts_what_came_later(site: Site) -> None:
    old = make_wheel("x", "1", uploaded="2026-02-01T00:00:00Z")
    new = make_wheel("x", "2", uploaded="2026-03-01T00:00:00Z")
    site.put_json("/simple/", [old, new])
    index = Index("own", f"{site.url}/simple/")
    catalog = Catalog(Reader(), [index], Target(), datetime(2026, 2, 28, tzinfo=UTC))
    assert set(offered(catalog, "x")) == {"1"}
    assert catalog.undated() == ()


def test_an_index_without_times_cannot_be_cut_and_is_named(site: Site, tmp_path: Path) -> None:
    site.put_pytorch("/whl/", [make_wheel("torch", "2.9.1", tag=TAG)])
    index = Index("cu130", f"{site.url}/whl/", "cu130", ("torch",))
    day = datetime(2026, 2, 28, tzinfo=UTC)
    catalog = Catalog(Reader(), [index], Target(), day)
    assert catalog.bound("torch", "cu130") is None
    assert catalog.undated() == ("cu130",)
    assert [page.state for page in catalog.pages()] == ["undated"]


def test_a_snapshot_read_by_that_day_counts(site: Site, tmp_path: Path) -> None:
    site.put_pytorch("/whl/", [make_wheel("torch", "2.9.1", tag=TAG)])
    index = Index("cu130", f"{site.url}/whl/", "cu130", ("torch",))
    Reader(tmp_path).page(index, "torch")
    later = datetime(2199, 1, 1, tzinfo=UTC)
    assert Catalog(Reader(tmp_path), [index], Target(), later).bound("torch", "cu130")


def test_credentials_reach_their_host_and_nothing_else(
    site: Site, ask: Ask, tmp_path: Path
) -> None:
    site.put_json("/simple/", [make_wheel("x", "1")])
    secret = site.url.replace("http://", "http://someone:hunter2@")
    out = tmp_path / "out"
    told = ask("--index", f"own={secret}/simple/", "--want", "x", "--json", "--out", out)
    assert told.code == 0
    assert site.credentials == {"someone:hunter2"}
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    for text in (told.out.encode(), *written):
        assert b"hunter2" not in text and b"someone" not in text
    assert json.loads(told.out)["lock"]["indexes"][0]["url"] == f"{site.url}/simple/x/"
