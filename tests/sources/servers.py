"""Servers that tests start on this machine, with the files of a folder on them."""

import asyncio
import itertools
import os
import threading
import warnings
from contextlib import contextmanager
from email.utils import formatdate
from urllib.parse import quote

import pytest
from pyarrow import fs

_numbers = itertools.count()


@contextmanager
def object_store(folder):
    """Put files in a bucket of an object store; give its URL and a query for Arrow's reader."""
    pytest.importorskip("flask_cors")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        server_module = pytest.importorskip("moto.server")
        server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
    host, port = server.get_host_and_port()
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    before = {name: os.environ.get(name) for name in keys}
    os.environ.update(keys)
    query = f"endpoint_override={host}:{port}&scheme=http&region=us-east-1"
    bucket = f"cells{next(_numbers)}"  # what one server of a process holds, all others hold
    store, _ = fs.FileSystem.from_uri(f"s3://{bucket}/?{query}&allow_bucket_creation=true")
    store.create_dir(bucket)
    fs.copy_files(str(folder), bucket, destination_filesystem=store, use_threads=False)
    try:
        yield f"s3://{bucket}", f"?{query}"
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        server.stop()


@contextmanager
def web_server(folder, *, marks_folders=True, gives_parts=True, is_broken=None):
    """Serve files, with lists of folders and parts of files; give the URL.

    Args:
        folder: With the files.
        marks_folders: End links to folders with a slash.
        gives_parts: Answer with the bytes that are asked for, not with whole files.
        is_broken: An event; while it is set, what is asked for is answered by an error.
    """
    web = pytest.importorskip("aiohttp.web")
    pytest.importorskip("fsspec")
    started, address = threading.Event(), []
    loop = asyncio.new_event_loop()

    async def give(request):
        path = folder / request.match_info["path"]
        if is_broken is not None and is_broken.is_set():
            raise web.HTTPInternalServerError
        if path.is_file() and gives_parts:
            return web.FileResponse(path)
        if path.is_file():
            changed = formatdate(path.stat().st_mtime, usegmt=True)
            return web.Response(body=path.read_bytes(), headers={"Last-Modified": changed})
        if not path.is_dir():
            raise web.HTTPNotFound
        mark = "/" if marks_folders else ""
        names = [quote(one.name) + mark * one.is_dir() for one in path.iterdir()]
        others = ["../", "/", "?order=size", "mailto:somebody"]
        links = "".join(f'<a href="{name}">{name}</a>' for name in [*others, *names])
        return web.Response(text=f"<html>{links}</html>", content_type="text/html")

    async def serve():
        application = web.Application()
        application.router.add_get("/{path:.*}", give)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        address.append(site._server.sockets[0].getsockname()[1])
        started.set()
        return runner

    def run():
        runner = loop.run_until_complete(serve())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run, name="fastloader-test-server")
    thread.start()
    assert started.wait(20)
    try:
        yield f"http://127.0.0.1:{address[0]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
