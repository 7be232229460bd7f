/* Copies rows of memory by several threads, as a module of Python: see _crew.py.

   A team is one caller and threads that stand by here, without the interpreter's lock, which they need neither to begin
   nor to end. The caller cuts a job into portions and publishes their number; whoever comes takes one after the
   other, the caller as well, so that nobody waits for a thread that wakes late or was put aside.

   Who writes and reads what, and why that is no race:
   - `job` is written by the caller alone, while no portion is left and none is unfinished. Others read it only after
     they took a portion: the caller's store to `left` (release) comes before their exchange (acquire), and
     the caller waits for `unfinished` to be 0 before it writes again.
   - `left` falls only where it is above 0. Who took a portion of one job, reports it before it takes one of the next: the next
     is not published earlier. So it does not matter of which job a thread has read `left` before its exchange.
   - Rows are written before `unfinished` falls (release), which the caller reads (acquire). Stores past the cache are
     in no order with that, so whoever makes them ends with a fence.
   - A thread that is about to sleep says so and then looks once more for work; the caller publishes and then looks who
     sleeps. Both in one order for all (seq_cst), so that at least one of them sees the other. Who turns `is_asleep` to 0
     rings the bell, or need not wait for it.
   A second caller of the same team, which `is_taken` tells, copies its rows alone. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if !defined(__STDC_NO_ATOMICS__) && !defined(_WIN32) /* else there is nothing in the module */
#define HAS_TEAM

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#ifdef __SSE2__
#include <emmintrin.h>
#define PAUSE() _mm_pause()
#else
#define PAUSE() ((void)0)
#endif

enum { LINE_BYTES = 64, ALIGNMENT_BYTES = 16, NUM_PARTS = 4 };

enum {
    PORTION_BYTES = 32 << 10,  /* 3 us of copying; to take one costs .1 */
    PIECE_BYTES = 256 << 10,   /* of a longer row */
    WORTH_A_CALL = 2 << 20, /* Bytes; for less, a thread that sleeps would come too late. */
};

enum {
    FREQUENT_NS = 200000, /* Pause after which the next job is still waited for awake. */
    PATIENCE_NS = 20000,  /* Time for which a caller waits for others' last portions awake. */
    NAP_NS = 50000,
    CROWDED_NS = 400000, /* More than one who was just woken takes. */
    SPINS_A_LOOK = 32, /* at the clock */
    /* Small jobs, after one in which somebody's core was taken: twice as many each time, unless at least as many in a
       row were done together in between. */
    FEWEST_ALONE = 8,
    MOST_ALONE = 64,
};

static inline int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ---- Copying ---- */

#ifdef __SSE2__

static inline void copy_line(char *target, const char *source) {
    const __m128i *read = (const __m128i *)source;
    __m128i *written = (__m128i *)target;
    __m128i first = _mm_loadu_si128(read);
    __m128i second = _mm_loadu_si128(read + 1);
    __m128i third = _mm_loadu_si128(read + 2);
    __m128i fourth = _mm_loadu_si128(read + 3);
    _mm_stream_si128(written, first);
    _mm_stream_si128(written + 1, second);
    _mm_stream_si128(written + 2, third);
    _mm_stream_si128(written + 3, fourth);
}

/* `bytes` are whole lines, `target` is aligned, `source` need not be. Four parts of the row are read side by side: the
   processor reads ahead within a page of 4 kB, so that several pages at once keep the memory busier. Each is an odd
   number of lines, since places at equal distances into pages get into each other's way in the cache. */
static void copy_past_cache(char *target, const char *source, size_t bytes) {
    size_t lines = bytes / LINE_BYTES / NUM_PARTS;
    size_t part = LINE_BYTES * (lines % 2 || !lines ? lines : lines - 1);
    for (size_t i = 0; i < part; i += LINE_BYTES)
        for (size_t start = 0; start < NUM_PARTS * part; start += part)
            copy_line(target + start + i, source + start + i);
    for (size_t i = NUM_PARTS * part; i < bytes; i += LINE_BYTES)
        copy_line(target + i, source + i);
}

#endif

typedef struct {
    const char *base;
    int64_t stride;
    const char *positions; /* int64, anywhere */
    size_t num_rows, row_bytes;
    char *target;
    int is_past_cache;
    size_t rows_a_portion;             /* 1 if rows are cut */
    size_t pieces_a_row, piece_bytes; /* 1 and all if they are not */
} Job;

static inline int64_t position(const Job *job, size_t row) {
    int64_t value;
    memcpy(&value, job->positions + row * sizeof value, sizeof value);
    return value;
}

static inline void copy_piece(const Job *job, size_t row, size_t start, size_t bytes) {
    const char *source = job->base + job->stride * position(job, row) + start;
    char *target = job->target + row * job->row_bytes + start;
#ifdef __SSE2__
    if (job->is_past_cache) {
        copy_past_cache(target, source, bytes);
        return;
    }
#endif
    memcpy(target, source, bytes);
}

static size_t cut(Job *job) {
    size_t pieces = (job->row_bytes + PIECE_BYTES - 1) / PIECE_BYTES;
    size_t lines = (job->row_bytes + LINE_BYTES * pieces - 1) / (LINE_BYTES * pieces);
    job->piece_bytes = lines * LINE_BYTES;
    job->pieces_a_row = (job->row_bytes + job->piece_bytes - 1) / job->piece_bytes;
    job->rows_a_portion = PORTION_BYTES / job->row_bytes;
    if (!job->rows_a_portion) job->rows_a_portion = 1;
    return (job->num_rows + job->rows_a_portion - 1) / job->rows_a_portion * job->pieces_a_row;
}

static void copy_portion(const Job *job, size_t number) {
    size_t first = number / job->pieces_a_row * job->rows_a_portion;
    size_t end = first + job->rows_a_portion;
    size_t start = number % job->pieces_a_row * job->piece_bytes;
    size_t bytes = job->row_bytes - start;
    if (bytes > job->piece_bytes) bytes = job->piece_bytes;
    if (end > job->num_rows) end = job->num_rows;
    for (size_t row = first; row < end; row++) copy_piece(job, row, start, bytes);
}

static inline void end_copying(const Job *job) {
#ifdef __SSE2__
    if (job->is_past_cache) _mm_sfence();
#else
    (void)job;
#endif
}

/* ---- The team ---- */

typedef struct {
    PyThread_type_lock bell;
    atomic_int is_asleep;
    char apart[LINE_BYTES]; /* from the next one's, for other processors */
} Helper;

typedef struct {
    PyObject_HEAD
    Py_ssize_t num_helpers;
    Helper *helpers;
    int64_t last_end_ns;
    int num_alone; /* small jobs that are yet to be done without help */
    int num_last_alone, num_together; /* since then */
    long num_preempted;
    Job job;
    size_t num_portions;
    atomic_int is_taken;
    char apart_1[LINE_BYTES];
    atomic_int num_present, is_closing, is_frequent;
    char apart_2[LINE_BYTES];
    atomic_size_t left;
    char apart_3[LINE_BYTES];
    atomic_size_t unfinished;
    char apart_4[LINE_BYTES];
} Team;

static void help(Team *team) {
    size_t num_done = 0, left = atomic_load_explicit(&team->left, memory_order_relaxed);
    while (left) {
        if (!atomic_compare_exchange_weak_explicit(&team->left, &left, left - 1, memory_order_acquire,
                                                   memory_order_relaxed))
            continue;
        copy_portion(&team->job, team->num_portions - left);
        num_done++;
        left = atomic_load_explicit(&team->left, memory_order_relaxed);
    }
    if (!num_done) return;
    end_copying(&team->job);
    atomic_fetch_sub_explicit(&team->unfinished, num_done, memory_order_release);
}

static inline int is_called(Team *team) {
    return atomic_load(&team->left) || atomic_load(&team->is_closing);
}

static int is_called_soon(Team *team) {
    int64_t end_ns = now_ns() + FREQUENT_NS;
    do {
        for (int i = 0; i < SPINS_A_LOOK; i++) {
            if (is_called(team)) return 1;
            PAUSE();
        }
    } while (now_ns() < end_ns);
    return 0;
}

static void wait_for_call(Team *team, Helper *me) {
    if (atomic_load_explicit(&team->is_frequent, memory_order_relaxed) && is_called_soon(team)) return;
    atomic_store(&me->is_asleep, 1);
    if (is_called(team) && atomic_exchange(&me->is_asleep, 0)) return;
    PyThread_acquire_lock(me->bell, WAIT_LOCK);
}

static void ring(Helper *helper) {
    if (atomic_load(&helper->is_asleep) && atomic_exchange(&helper->is_asleep, 0))
        PyThread_release_lock(helper->bell);
}

/* Returns how often this thread's core was given to another. */
static long count_preempted(void) {
#ifdef RUSAGE_THREAD
    struct rusage usage;
    if (!getrusage(RUSAGE_THREAD, &usage)) return usage.ru_nivcsw;
#endif
    return 0;
}

/* Returns whether one of them had no processor. */
static int wait_for_others(Team *team) {
    if (!atomic_load_explicit(&team->unfinished, memory_order_acquire)) return 0;
    int64_t waited_ns, start_ns = now_ns();
    do {
        waited_ns = now_ns() - start_ns;
        if (waited_ns < PATIENCE_NS) {
            for (int i = 0; i < SPINS_A_LOOK; i++) PAUSE();
        } else {
            struct timespec nap = {0, NAP_NS};
            nanosleep(&nap, NULL);
        }
    } while (atomic_load_explicit(&team->unfinished, memory_order_acquire));
    return waited_ns > CROWDED_NS;
}

static void copy_alone(Job *job) {
    size_t num_portions = cut(job);
    for (size_t number = 0; number < num_portions; number++) copy_portion(job, number);
    end_copying(job);
}

static void do_some_alone(Team *team) {
    int num_last = team->num_last_alone;
    int num_next = team->num_together < num_last ? 2 * num_last : FEWEST_ALONE;
    team->num_alone = team->num_last_alone = num_next < MOST_ALONE ? num_next : MOST_ALONE;
    team->num_together = 0;
}

/* Returns whether more helpers would have been called than there are. */
static int copy_together(Team *team, Job *job, int num_wanted) {
    int64_t start_ns = now_ns();
    int is_frequent = start_ns - team->last_end_ns < FREQUENT_NS;
    int is_large = job->num_rows * job->row_bytes >= WORTH_A_CALL;
    int num_present = atomic_load(&team->num_present);
    if (!is_large && (!is_frequent || team->num_alone)) num_wanted = 0;
    if (!is_large && team->num_alone && !--team->num_alone) team->num_preempted = count_preempted();
    int num_called = num_wanted < num_present ? num_wanted : num_present;
    atomic_store_explicit(&team->is_frequent, is_frequent, memory_order_relaxed);
    if (!num_wanted) {
        copy_alone(job);
    } else { /* also those who are about to come may help */
        team->num_portions = cut(job);
        team->job = *job;
        atomic_store_explicit(&team->unfinished, team->num_portions, memory_order_relaxed);
        atomic_store(&team->left, team->num_portions);
        for (int i = 0; i < num_called; i++) ring(&team->helpers[i]);
        help(team);
        int is_crowded = wait_for_others(team);
        long num_preempted = count_preempted();
        if (is_crowded || num_preempted != team->num_preempted)
            do_some_alone(team);
        else
            team->num_together++;
        team->num_preempted = num_preempted;
    }
    team->last_end_ns = now_ns();
    return num_wanted > num_present;
}

/* ---- The module ---- */

static void close_helpers(Team *team) {
    atomic_store(&team->is_closing, 1);
    for (Py_ssize_t i = 0; i < team->num_helpers; i++) ring(&team->helpers[i]);
}

static void team_dealloc(PyObject *self) {
    Team *team = (Team *)self;
    PyTypeObject *type = Py_TYPE(self);
    for (Py_ssize_t i = 0; team->helpers && i < team->num_helpers; i++)
        if (team->helpers[i].bell) PyThread_free_lock(team->helpers[i].bell);
    PyMem_Free(team->helpers);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *team_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    Py_ssize_t num_helpers;
    if (keywords && PyDict_GET_SIZE(keywords)) {
        PyErr_SetString(PyExc_TypeError, "Team takes no keywords.");
        return NULL;
    }
    if (!PyArg_ParseTuple(arguments, "n", &num_helpers)) return NULL;
    if (num_helpers < 0 || num_helpers > INT16_MAX) {
        PyErr_Format(PyExc_ValueError, "Team needs 0 to %d helpers, not %zd.", INT16_MAX, num_helpers);
        return NULL;
    }
    Team *team = (Team *)type->tp_alloc(type, 0); /* all of it is 0 */
    if (!team) return NULL;
    team->last_end_ns = now_ns() - FREQUENT_NS;
    team->num_preempted = count_preempted();
    team->num_helpers = num_helpers;
    team->helpers = PyMem_Calloc((size_t)num_helpers + 1, sizeof(Helper));
    for (Py_ssize_t i = 0; team->helpers && i < num_helpers; i++) {
        PyThread_type_lock bell = team->helpers[i].bell = PyThread_allocate_lock();
        if (!bell) {
            Py_DECREF(team);
            return PyErr_NoMemory();
        }
        PyThread_acquire_lock(bell, WAIT_LOCK); /* who waits for it waits until it is rung */
    }
    if (!team->helpers) {
        Py_DECREF(team);
        return PyErr_NoMemory();
    }
    return (PyObject *)team;
}

PyDoc_STRVAR(stand_by_doc, "stand_by()\n--\n\n"
                           "Help the caller until the team is closed, without the interpreter's lock.\n\n"
                           "Raises:\n"
                           "    RuntimeError: If all helpers are there already.");

static PyObject *team_stand_by(PyObject *self, PyObject *none) {
    (void)none;
    Team *team = (Team *)self;
    int number = atomic_load(&team->num_present);
    do {
        if (number >= team->num_helpers) {
            PyErr_Format(PyExc_RuntimeError, "All %zd helpers stand by.", team->num_helpers);
            return NULL;
        }
    } while (!atomic_compare_exchange_weak(&team->num_present, &number, number + 1));
    Py_BEGIN_ALLOW_THREADS
    while (!atomic_load(&team->is_closing)) {
        help(team);
        wait_for_call(team, &team->helpers[number]);
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyDoc_STRVAR(close_doc, "close()\n--\n\nLet all helpers return, for good; who copies does so alone from now on.");

static PyObject *team_close(PyObject *self, PyObject *none) {
    (void)none;
    close_helpers((Team *)self);
    Py_RETURN_NONE;
}

static int is_within(const Job *job, int64_t num_sources) {
    int64_t least = INT64_MAX, most = -1;
    for (size_t row = 0; row < job->num_rows; row++) {
        int64_t here = position(job, row);
        least = here < least ? here : least;
        most = here > most ? here : most;
    }
    if (!job->num_rows || (least >= 0 && most < num_sources)) return 1;
    PyErr_Format(PyExc_IndexError, "positions from %lld to %lld of %lld rows: expected 0 to %lld.",
                 (long long)least, (long long)most, (long long)num_sources, (long long)num_sources - 1);
    return 0;
}

PyDoc_STRVAR(copy_doc,
             "copy(base, stride, num_sources, positions, row_bytes, target, is_past_cache, num_helpers)\n--\n\n"
             "Copy rows one after the other, without the interpreter's lock.\n\n"
             "Row number i is read at `base` + `stride` * positions[i].\n\n"
             "Args:\n"
             "    base: Address.\n"
             "    stride: In bytes.\n"
             "    num_sources: All positions are below it.\n"
             "    positions: A buffer of int64.\n"
             "    row_bytes: Of each; whole lines of 64 if they go past the cache.\n"
             "    target: Address of the first byte, divisible by 16 if they go past the cache; there is\n"
             "        room for all rows.\n"
             "    is_past_cache: Whether to write past the cache, where that is known how.\n"
             "    num_helpers: That may help.\n\n"
             "Returns:\n"
             "    Whether fewer stand by than are needed now.\n\n"
             "Raises:\n"
             "    IndexError: If a position is outside.\n"
             "    ValueError: If sizes or address do not fit.");

enum { BASE, STRIDE, NUM_SOURCES, POSITIONS, ROW_BYTES, TARGET, IS_PAST_CACHE, NUM_HELPERS, NUM_ARGUMENTS };

static PyObject *team_copy(PyObject *self, PyObject *const *arguments, Py_ssize_t num_arguments) {
    Team *team = (Team *)self;
    int64_t numbers[NUM_ARGUMENTS];
    Py_buffer positions;
    if (num_arguments != NUM_ARGUMENTS) {
        PyErr_Format(PyExc_TypeError, "copy takes %d arguments, not %zd.", NUM_ARGUMENTS, num_arguments);
        return NULL;
    }
    for (int i = 0; i < NUM_ARGUMENTS; i++) {
        numbers[i] = i == POSITIONS ? 0 : PyLong_AsLongLong(arguments[i]);
        if (numbers[i] == -1 && PyErr_Occurred()) return NULL;
    }
    if (PyObject_GetBuffer(arguments[POSITIONS], &positions, PyBUF_SIMPLE) < 0) return NULL;
    Job job = {
        .base = (const char *)(intptr_t)numbers[BASE],
        .stride = numbers[STRIDE],
        .positions = positions.buf,
        .num_rows = (size_t)positions.len / sizeof(int64_t),
        .row_bytes = (size_t)numbers[ROW_BYTES],
        .target = (char *)(intptr_t)numbers[TARGET],
        .is_past_cache = numbers[IS_PAST_CACHE] != 0,
    };
    int fits = positions.len % (Py_ssize_t)sizeof(int64_t) == 0 && numbers[ROW_BYTES] > 0;
    if (job.is_past_cache)
        fits = fits && job.row_bytes % LINE_BYTES == 0 && numbers[TARGET] % ALIGNMENT_BYTES == 0;
    int lacks_helpers = 0;
    if (!fits) {
        PyErr_SetString(PyExc_ValueError,
                        "copy needs positions of 8 bytes and rows of at least one; past the cache, whole lines of "
                        "64 bytes and a target at a multiple of 16.");
    } else if (is_within(&job, numbers[NUM_SOURCES])) {
        Py_BEGIN_ALLOW_THREADS
        if (numbers[NUM_HELPERS] > 0 && !atomic_exchange(&team->is_taken, 1)) {
            int most = numbers[NUM_HELPERS] < team->num_helpers ? (int)numbers[NUM_HELPERS] : (int)team->num_helpers;
            lacks_helpers = copy_together(team, &job, most);
            atomic_store(&team->is_taken, 0);
        } else {
            copy_alone(&job);
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&positions);
    if (PyErr_Occurred()) return NULL;
    return PyBool_FromLong(lacks_helpers);
}

static PyMethodDef TEAM_METHODS[] = {
    {"stand_by", team_stand_by, METH_NOARGS, stand_by_doc},
    {"close", team_close, METH_NOARGS, close_doc},
    {"copy", (PyCFunction)(void (*)(void))team_copy, METH_FASTCALL, copy_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot TEAM_SLOTS[] = {
    {Py_tp_doc, "Team(num_helpers)\n--\n\nOne caller, who copies rows, and threads that help."},
    {Py_tp_new, team_new},
    {Py_tp_dealloc, team_dealloc},
    {Py_tp_methods, TEAM_METHODS},
    {0, NULL},
};

static PyType_Spec TEAM_SPEC = {
    .name = "fastloader.threads._row_team.Team",
    .basicsize = sizeof(Team),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = TEAM_SLOTS,
};

#endif

static int fill(PyObject *module) {
#ifdef HAS_TEAM
    if (PyModule_AddIntConstant(module, "WORTH_A_CALL", WORTH_A_CALL)) return -1;
    PyObject *type = PyType_FromModuleAndSpec(module, &TEAM_SPEC, NULL);
    if (!type) return -1;
    int failed = PyModule_AddObjectRef(module, "Team", type);
    Py_DECREF(type);
    if (failed) return -1;
#endif
#ifdef __SSE2__
    int knows_past_cache = 1;
#else
    int knows_past_cache = 0;
#endif
    return PyModule_AddIntConstant(module, "KNOWS_PAST_CACHE", knows_past_cache);
}

static PyModuleDef_Slot SLOTS[] = {
    {Py_mod_exec, fill},
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* see above */
#endif
    {0, NULL},
};

static struct PyModuleDef DEFINITION = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_row_team",
    .m_doc = "Copies rows of memory by several threads; see `fastloader.threads._crew`.",
    .m_size = 0,
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__row_team(void) { return PyModuleDef_Init(&DEFINITION); }
