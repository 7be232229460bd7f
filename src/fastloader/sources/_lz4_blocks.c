/* Decompresses the blocks of LZ4 frames, as a function of Python: see _lz4_frame.py. */

#include "_raw_files.h"

#ifndef _WIN32

#include <limits.h>
#include <string.h>

enum { LENGTH_BYTES = 4, WINDOW_BYTES = 64 << 10, IS_STORED = 0x80 };

/* LZ4_decompress_safe_usingDict, of a library whose header need not be there. */
typedef int Lz4Block(const char *source, char *target, int source_bytes, int target_bytes,
                     const char *before, int before_bytes);

const char DECOMPRESS_BLOCKS_DOC[] =
    "decompress_blocks(stored, edges, block_bytes, target, function)\n--\n\n"
    "Decompress the blocks of a frame behind each other, without the interpreter's lock.\n\n"
    "Args:\n"
    "    stored: The frame.\n"
    "    edges: Position of each block, whose length stands before it, and last where they end; int64.\n"
    "    block_bytes: Of each block but the last, when decompressed.\n"
    "    target: Filled.\n"
    "    function: Address of LZ4_decompress_safe_usingDict.\n\n"
    "Returns:\n"
    "    False if a block is damaged, or they have more or fewer bytes.";

PyObject *decompress_blocks(PyObject *module, PyObject *arguments) {
    (void)module;
    Py_buffer stored, edges, target;
    Py_ssize_t block_bytes, function; /* as wide as an address */
    if (!PyArg_ParseTuple(arguments, "y*y*nw*n", &stored, &edges, &block_bytes, &target, &function))
        return NULL;
    Lz4Block *decompress = (Lz4Block *)function;
    Py_ssize_t num_blocks = edges.len / (Py_ssize_t)sizeof(int64_t) - 1;
    int64_t done = 0;
    int is_right = 0 < block_bytes && block_bytes <= INT_MAX;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t at = 0; is_right && at < num_blocks; at++) {
        int64_t edge[2]; /* a buffer may begin anywhere */
        memcpy(edge, (const char *)edges.buf + (size_t)at * sizeof *edge, sizeof edge);
        int64_t bytes = edge[1] - edge[0] - LENGTH_BYTES;
        int64_t room = smaller(block_bytes, target.len - done);
        is_right = 0 <= edge[0] && 0 < bytes && bytes <= INT_MAX && edge[1] <= stored.len && 0 < room;
        if (!is_right) break;
        const char *source = (const char *)stored.buf + edge[0] + LENGTH_BYTES;
        char *place = (char *)target.buf + done;
        int64_t before = smaller(done, WINDOW_BYTES);
        if (source[-1] & IS_STORED) {
            is_right = bytes == room;
            if (is_right) memcpy(place, source, (size_t)room);
        } else {
            is_right = decompress(source, place, (int)bytes, (int)room, place - before,
                                  (int)before) == room;
        }
        done += room;
    }
    Py_END_ALLOW_THREADS
    is_right &= done == target.len;
    PyBuffer_Release(&stored);
    PyBuffer_Release(&edges);
    PyBuffer_Release(&target);
    return PyBool_FromLong(is_right);
}

#endif
