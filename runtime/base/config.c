/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The option table. A row is a variable, a flag, a default, bounds and a sentence of documentation.
 * config_parse.c reads what users set; variables.c looks through the names of all for those that
 * are set in vain.
 */
#include "config.h"

#include "log.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#define ROWS (sizeof rows / sizeof rows[0])
#define AT(field) offsetof(struct horon_config, field)
#define KIB ((int64_t)1 << 10)
#define MIB ((int64_t)1 << 20)
#define GIB ((int64_t)1 << 30)

/* What a WORD stores is the place of its choice, and read as one of these. */
static_assert(HORON_LOG_ERROR == 0, "the first choice of LOG_LEVEL");
static_assert(HORON_LOG_WARN == 1, "the second");
static_assert(HORON_LOG_INFO == 2, "the third");
static_assert(HORON_LOG_DEBUG == 3, "the fourth");
static_assert(HORON_LOG_TRACE == 4, "the last");
static_assert(HORON_GLOO_AUTO == 0, "the first choice of GLOO_ERA");
static_assert(HORON_GLOO_E1 == 1, "the second");
static_assert(HORON_GLOO_E3 == 2, "the last");
static_assert(HORON_JOIN_AVERAGE_ALL == 0, "the first choice of JOIN_AVERAGE");
static_assert(HORON_JOIN_AVERAGE_GIVEN == 1, "the last");

/* Horovod's words. GLOO there means "without MPI", which is native here. NULL: there is none such
 * here. */
static const struct horon_config_word backend_words[] = {
    {"mpi", "mpi"}, {"gloo", "native"}, {"ccl", NULL}, {"mlsl", NULL},
    {"nccl", NULL}, {"ddl", NULL},      {NULL, NULL},
};

static const struct horon_config_row rows[] = {
    {.name = "LOG_LEVEL",
     .alias = "HOROVOD_LOG_LEVEL",
     .type = HORON_CONFIG_WORD,
     .offset = AT(log_level),
     .dflt = "warn",
     .choices = "error warn info debug trace",
     .doc = "How much is logged to standard error."},
    {.name = "STORE",
     .type = HORON_CONFIG_TEXT,
     .offset = AT(store),
     .dflt = "",
     .from_launcher = true,
     .doc = "Where ranks find each other: tcp://HOST:PORT, or several addresses of the host, comma "
            "separated; or file:DIR on a shared file system. horonrun sets it."},
    {.name = "RANKS",
     .type = HORON_CONFIG_TEXT,
     .offset = AT(ranks),
     .dflt = "",
     .doc = "Those of the ranks that were started which are the job, numbered in this order, as in "
            "0,2,4-7 or 0-98:2 (each second one); empty: all. Lists that share no rank are jobs of "
            "their own."},
    {.name = "GLOO_STORE",
     .type = HORON_CONFIG_TEXT,
     .offset = AT(gloo_store),
     .dflt = "",
     .doc = "Joins ranks that speak Gloo, which find each other there: file:DIR (Gloo's "
            "FileStore), c10d-file:PATH (torch's), tcp://HOST:PORT (torch's TCPStore, which rank 0 "
            "serves if nothing does), http://HOST:PORT/SCOPE (Horovod's), hash:NAME (in one "
            "process, whose threads are all the ranks). Nobody proves anything on such "
            "connections."},
    {.name = "GLOO_PREFIX",
     .type = HORON_CONFIG_TEXT,
     .offset = AT(gloo_prefix),
     .dflt = "",
     .doc = "Stands before the keys in GLOO_STORE, as that of the other ranks does (PrefixStore)."},
    {.name = "GLOO_ERA",
     .type = HORON_CONFIG_WORD,
     .offset = AT(gloo_era),
     .dflt = "auto",
     .choices = "auto e1 e3",
     .lacking = "e2",
     .lacking_is = "the way of torch 2.1 and 2.2",
     .doc = "How the others meet: e1, as Gloo until May 2023, torch until 2.0 and Horovod; e3, as "
            "Gloo since July 2023, torch since 2.3; auto: e1 by http, else e3."},
    {.name = "GLOO_NATIVE",
     .type = HORON_CONFIG_BOOL,
     .offset = AT(gloo_native),
     .dflt = "1",
     .doc = "1: two horons among Gloo's ranks spare each other Gloo's credits, by frames that Gloo "
            "skips; 0: they speak as Gloo does, but for one, which says that they have joined."},
    {.name = "JOB_KEY",
     .type = HORON_CONFIG_TEXT,
     .offset = AT(job_key),
     .dflt = "",
     .secret = true,
     .from_launcher = true,
     .doc = "The key that every connection proves: 32 hexadecimal digits or 22 other characters at "
            "least, random. horonrun makes one if it is given none."},
    {.name = "JOB_KEY_FILE",
     .type = HORON_CONFIG_TEXT,
     .offset = AT(job_key_file),
     .dflt = "",
     .from_launcher = true,
     .doc = "A file that holds the job key and nothing else, if JOB_KEY is not set; or fd:N, a "
            "descriptor of sealed memory, which horonrun makes."},
    {.name = "FAILURE_FILE",
     .type = HORON_CONFIG_TEXT,
     .offset = AT(failure_file),
     .dflt = "",
     .from_launcher = true,
     .doc = "fd:N, a descriptor of sealed memory, which horonrun makes: a rank tells there which "
            "other one made it fail."},
    {.name = "INTERFACES",
     .type = HORON_CONFIG_TEXT,
     .offset = AT(interfaces),
     .dflt = "",
     .doc = "Network interfaces or addresses to use between hosts, comma separated (eth0, "
            "10.1.0.0/16); empty: all."},
    {.name = "PORT_RANGE",
     .type = HORON_CONFIG_TEXT,
     .offset = AT(port_range),
     .dflt = "",
     .doc = "Ports to listen on, as FIRST-LAST; empty: any."},
    {.name = "START_TIMEOUT",
     .alias = "HOROVOD_START_TIMEOUT",
     .alias_unit = "s",
     .type = HORON_CONFIG_TIME,
     .offset = AT(start_timeout_ms),
     .dflt = "60s",
     .min = 1,
     .max = 86400000,
     .doc = "How long joining may take before it fails and names the missing ranks."},
    {.name = "PEER_TIMEOUT",
     .type = HORON_CONFIG_TIME,
     .offset = AT(peer_timeout_ms),
     .dflt = "10s",
     .min = 500,
     .max = 86400000,
     .doc = "How long another host may leave data or a keepalive unanswered before it counts as "
            "lost. A killed process is noticed at once; a stopped one is waited for; if a "
            "horon_run() has a time limit, this long after it."},
    {.name = "FUSION_BYTES",
     .alias = "HOROVOD_FUSION_THRESHOLD",
     .type = HORON_CONFIG_BYTES,
     .offset = AT(fusion_bytes),
     .dflt = "64m",
     .min = 0,
     .max = 4 * GIB,
     .agreed = true,
     .doc = "Largest batch of tensors reduced as one; 0 turns fusion off."},
    {.name = "CACHE_ENTRIES",
     .alias = "HOROVOD_CACHE_CAPACITY",
     .type = HORON_CONFIG_INT,
     .offset = AT(cache_entries),
     .dflt = "8192",
     .min = 0,
     .max = 1 << 20,
     .agreed = true,
     .doc = "Tensors that are remembered and negotiated by a small id; 0 turns the cache off."},
    {.name = "INFLIGHT_MAX",
     .type = HORON_CONFIG_INT,
     .offset = AT(inflight_max),
     .dflt = "65536",
     .min = 1,
     .max = 1 << 20,
     .doc =
         "Requests that may be in flight on a rank; one more is refused. So many names a rank may "
         "be behind another one."},
    {.name = "SHM",
     .type = HORON_CONFIG_BOOL,
     .offset = AT(shm_enabled),
     .dflt = "1",
     .agreed = true,
     .doc = "Shared memory inside a host; with 0 every rank is a host of its own and uses TCP."},
    {.name = "SHM_CHUNK_BYTES",
     .type = HORON_CONFIG_BYTES,
     .offset = AT(shm_chunk_bytes),
     .dflt = "1m",
     .min = 4096,
     .max = 16 * MIB,
     .agreed = true,
     .doc = "Bytes of a slot in shared memory, through which larger tensors move piece by piece; a "
            "rank has two a lane, so four in each process set. On a single host sums use a quarter "
            "of a slot at a time, an eighth where ranks share cores. A slot has 128 bytes for each "
            "rank of the job at least."},
    {.name = "SHM_LEND_BYTES",
     .type = HORON_CONFIG_BYTES,
     .offset = AT(shm_lend_bytes),
     .dflt = "32k",
     .min = 0,
     .max = 1 << 30,
     .agreed = true,
     .doc =
         "From so many bytes on, what one rank of a host gets of another is read where it lies, in "
         "messages (those above NET_EAGER_BYTES, if that is less) and, on one host, in a scatter, "
         "an all-to-all, and an allgather or a short gather or broadcast of two ranks. Only if the "
         "system lets these processes read each other's memory; 0: never. A page that does not "
         "come, as of a file out of reach, keeps its reader, too, whatever the time limit."},
    {.name = "SHM_SMALL_BYTES",
     .type = HORON_CONFIG_BYTES,
     .offset = AT(shm_small_bytes),
     .dflt = "16k",
     .min = 0,
     .max = 64 * KIB,
     .agreed = true,
     .doc = "Up to this size a tensor moves in one step: every rank reads all inputs; with several "
            "hosts the first rank of each does, and tells the others. Allreduce and broadcast on a "
            "single host with a core for every rank do so up to an eighth of it, allgather on "
            "several hosts never."},
    {.name = "NET_EAGER_BYTES",
     .type = HORON_CONFIG_BYTES,
     .offset = AT(net_eager_bytes),
     .dflt = "64k",
     .min = 1,
     .max = 16 * MIB,
     .agreed = true,
     .doc = "Bytes of one transfer that may be sent to another host before that host is ready to "
            "receive them; to a rank of the same host that can read the sender's memory less than "
            "SHM_LEND_BYTES, too."},
    {.name = "NET_CHUNK_BYTES",
     .type = HORON_CONFIG_BYTES,
     .offset = AT(net_chunk_bytes),
     .dflt = "1m",
     .min = 4096,
     .max = 16 * MIB,
     .agreed = true,
     .doc =
         "Bytes of a tensor that travel between hosts at a time, at most a slot of "
         "SHM_CHUNK_BYTES; a rank's own in an allgather, at most its share of the slot; a quarter "
         "of it of each run of an all-to-all among more than two hosts."},
    {.name = "NET_ALGORITHM",
     .type = HORON_CONFIG_TEXT,
     .offset = AT(net_algorithm),
     .dflt = "auto",
     .choices = "auto flat doubling direct halving chain",
     .agreed = true,
     .doc = "Between hosts: an allreduce, but for chain; a reduce, flat to direct; a broadcast, "
            "doubling or chain. auto chooses by size, as do the others where they are none; all "
            "give the same bits."},
    {.name = "DETERMINISTIC",
     .type = HORON_CONFIG_BOOL,
     .offset = AT(deterministic),
     .dflt = "0",
     .agreed = true,
     .doc = "Leave sums to backends that give the same bits in every run; this library's own "
            "always does."},
    {.name = "BACKEND",
     .alias = "HOROVOD_CPU_OPERATIONS",
     .alias_too = "HOROVOD_GPU_OPERATIONS",
     .alias_words = backend_words,
     .type = HORON_CONFIG_TEXT,
     .offset = AT(backend),
     .dflt = "native",
     .names = true,
     .agreed = true,
     .doc =
         "What carries operations, comma separated, the preferred first: native (shared memory "
         "and TCP), mpi. native is always there, for what the others lack. Among Gloo's ranks it "
         "is gloo, and nothing else. Of Horovod's words gloo means native."},
    {.name = "MPI_LIBRARY",
     .type = HORON_CONFIG_TEXT,
     .offset = AT(mpi_library),
     .dflt = "",
     .doc = "The MPI library's file; empty: what the process has, else the launcher's, else any."},
    {.name = "MPI_SERIALIZED",
     .type = HORON_CONFIG_BOOL,
     .offset = AT(mpi_serialized),
     .dflt = "0",
     .doc =
         "The program makes no calls of MPI from joining to leaving, and none, nor MPI_Finalize(), "
         "once an operation has failed: MPI works on its tensors without a copy, and "
         "MPI_THREAD_SERIALIZED is enough for BACKEND=mpi (process sets do without MPI there)."},
    {.name = "SPIN_US",
     .type = HORON_CONFIG_INT,
     .offset = AT(spin_us),
     .dflt = "2",
     .min = 0,
     .max = 1000000,
     .doc = "Microseconds a waiting thread spins before it yields the core; less "
            "where ranks outnumber cores and another one wants it."},
    {.name = "YIELD_US",
     .type = HORON_CONFIG_INT,
     .offset = AT(yield_us),
     .dflt = "2000",
     .min = 0,
     .max = 10000000,
     .doc = "Microseconds a waiting thread then yields before it sleeps; beside Gloo's own ranks "
            "it soon naps instead."},
    {.name = "STALL_WARN",
     .alias = "HOROVOD_STALL_CHECK_TIME_SECONDS",
     .alias_off = "HOROVOD_STALL_CHECK_DISABLE",
     .alias_unit = "s",
     .type = HORON_CONFIG_TIME,
     .offset = AT(stall_warn_ms),
     .dflt = "60s",
     .min = 0,
     .max = 86400000,
     .doc = "Warn about a tensor that some ranks have waited for so long, again after twice that "
            "time, four times and so on, and when it has ended; 0: never."},
    {.name = "STALL_SHUTDOWN_TIME",
     .alias = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
     .alias_off = "HOROVOD_STALL_CHECK_DISABLE",
     .alias_unit = "s",
     .type = HORON_CONFIG_TIME,
     .offset = AT(stall_shutdown_ms),
     .dflt = "0",
     .min = 0,
     .max = 86400000,
     .doc = "End the job, on all ranks, when some have waited so long for a named operation that "
            "others have not begun; 0: never."},
    {.name = "TIMELINE",
     .alias = "HOROVOD_TIMELINE",
     .type = HORON_CONFIG_TEXT,
     .offset = AT(timeline),
     .dflt = "",
     .doc =
         "A file for what happens to operations, as a Chrome trace; rank 0 writes it. With %r in "
         "it, which stands for the rank, every rank writes its own. DYNAMIC means none yet, as "
         "with Horovod: calls may begin one at any time."},
    {.name = "TIMELINE_CYCLES",
     .alias = "HOROVOD_TIMELINE_MARK_CYCLES",
     .type = HORON_CONFIG_BOOL,
     .offset = AT(timeline_cycles),
     .dflt = "0",
     .doc = "Mark in that file when negotiated batches are taken up."},
    {.name = "OBJECTS",
     .type = HORON_CONFIG_WORD,
     .offset = AT(objects),
     .dflt = "pickle",
     .choices = "pickle refuse",
     .doc =
         "How bindings send objects such as Python's: pickled, which lets a sender run code where "
         "they are read; or not at all.",
     .agreed = true},
    {.name = "PROCESS_SETS",
     .type = HORON_CONFIG_TEXT,
     .offset = AT(process_sets),
     .dflt = "",
     .agreed = true,
     .doc =
         "Process sets that are there from the start, with the ids 1, 2 and so on: lists of "
         "ranks, as in 0,2,4-7;1,3. Behind an @ may stand what carries one's operations, of what "
         "BACKEND names: 1,3@mpi."},
    {.name = "DYNAMIC_PROCESS_SETS",
     .alias = "HOROVOD_DYNAMIC_PROCESS_SETS",
     .type = HORON_CONFIG_BOOL,
     .offset = AT(dynamic_process_sets),
     .dflt = "1",
     .agreed = true,
     .doc = "Let process sets be added and removed after joining; with 0 that is refused."},
    {.name = "JOIN_AVERAGE",
     .type = HORON_CONFIG_WORD,
     .offset = AT(join_average),
     .dflt = "all",
     .choices = "all given",
     .agreed = true,
     .doc =
         "What an average is divided by once ranks have joined: all ranks of the process set, as "
         "with Horovod, or those that have given something."},
    {.name = "JOIN_VERBS",
     .type = HORON_CONFIG_WORD,
     .offset = AT(join_verbs),
     .dflt = "reductions",
     .choices = "reductions all",
     .doc =
         "What horon.torch lets go on once ranks have joined: reductions alone, so that "
         "allgather, broadcast, alltoall and reducescatter raise as with Horovod, or all verbs."},
};

const struct horon_config_row *horon_config_rows(size_t *count_out)
{
    *count_out = ROWS;
    return rows;
}

const struct horon_config_row *horon_config_find(const char *name, size_t name_bytes)
{
    assert(name);
    for (size_t i = 0; i < ROWS; i++)
        if (strlen(rows[i].name) == name_bytes && strncmp(rows[i].name, name, name_bytes) == 0)
            return &rows[i];
    return NULL;
}
