"""Passwords and keys of URLs are in no text that people read and pass on."""

import pickle
import traceback

import pytest

from fastloader._secrets import hide_secrets
from fastloader.cache import disk_cache_path
from fastloader.errors import SourceError
from fastloader.sources import open_source

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://key:s3cr3t@cells/a.parquet is gone", "s3://***@cells/a.parquet is gone"),
        ("'https://s3cr3t@host:80/a' (404)", "'https://***@host:80/a' (404)"),
        ("ftp://me:at@s3cr3t@host/a", "ftp://***@host/a"),
        ("s3://key:with/s3cr3t@cells/a@b", "s3://***@cells/a@b"),
        ("s3://key:a s3cr3t@cells/a", "s3://***@cells/a"),
        ("simplecache::http://me:s3cr3t@host/a", "simplecache::http://***@host/a"),
        ("http://host/a?X-Amz-Signature=s3cr3t&b=1", "http://host/a?X-Amz-Signature=***&b=1"),
        ("az://a/b?sv=1&sig=s3cr3t%3D", "az://a/b?sv=1&sig=***"),
        ("s3://a/b?region=x&secret_key=s3cr3t)", "s3://a/b?region=x&secret_key=***)"),
    ],
)
def test_secrets_are_taken_out_of_a_text(text, expected):
    assert hide_secrets(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "http://host:8080/cells@2/a.tif?page=3",
        "s3://bucket/a@b/c:d.parquet?region=eu-west-1&scheme=http",
        "/home/me:you@there/a.parquet?token=1",
        "somebody@example.org: key=1",
    ],
)
def test_everything_else_stays(text):
    assert hide_secrets(text) == text


@pytest.mark.parametrize(
    "url",
    [
        f"s3://key:{SECRET}/@cells/a.parquet",
        f"s3://cells/a.parquet?bogus=1&secret_key={SECRET}&access_key=key",
        f"gs://me:{SECRET}@cells/a.parquet",
        f"nobody-knows://me:{SECRET}@cells/a.parquet",
        f"http://me:{SECRET}@127.0.0.1:1/a.parquet",
        f"http://127.0.0.1:1/a.parquet?token={SECRET}",
    ],
)
@pytest.mark.library_threads  # Arrow's live on
@pytest.mark.parametrize("kind", ["parquet", "tiff", "ome-zarr"])
def test_errors_and_what_led_to_them_have_none(url, kind):
    pytest.importorskip("aiohttp")

    with pytest.raises(SourceError) as raised:
        open_source(url, format=kind)

    assert SECRET not in "".join(traceback.format_exception(raised.value))
    assert SECRET not in repr(raised.value)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_errors_of_the_system_keep_their_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        open(f"http://me:{SECRET}@host/a")  # noqa: PTH123, SIM115 - pathlib would join the slashes
    except OSError as error:
        ours = SourceError("it is not there")
        ours.__cause__ = error

    assert SECRET not in "".join(traceback.format_exception(ours))
    assert ours.__cause__.errno == 2


def test_the_name_of_a_cache_file_has_none(tmp_path):
    path = disk_cache_path(tmp_path, f"s3://key:{SECRET}@cells", "")

    assert SECRET not in path.name
