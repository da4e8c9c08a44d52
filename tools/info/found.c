/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions to libraries that may be absent. The child does what it likes and prints its answer:
 * "+" and what there is, or "-" and why not; the parent reads with a limit. No header of theirs is
 * used: the few functions called are declared here, as their documentation gives them.
 */
#include "found.h"

#include "backend/mpi_library.h"
#include "backend/mpi_open.h"
#include "config.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <horon/horon.h>
#include <limits.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE_MS 10000
#define MPI_NAMES_MAX 8 /* of horon_mpi_usual() */

/* Appends to the answer being made, cut to fit. */
static void add(struct horon_found *found, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void add(struct horon_found *found, const char *format, ...)
{
    size_t used = strlen(found->text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(found->text + used, sizeof found->text - used, format, arguments);
    va_end(arguments);
}

/* A pointer to a function, which C does not let void * become directly. */
#define SYMBOL(function, library, name) (*(void **)&(function) = dlsym((library), (name)))

/* Fills in what it finds out about @p which. */
typedef void (*ask_fn)(struct horon_found *found, const char *which);

_Noreturn static void answer(int fd, ask_fn ask, const char *which)
{
    struct horon_found found = {0};
    int quiet = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1); /* what a program that is asked */
    dup2(fd, STDIN_FILENO); /* has started may stay, and must not hold it */
    if (fd > STDERR_FILENO)
        close(fd);
    close(STDOUT_FILENO); /* libraries may chat */
    ask(&found, which);
    dprintf(quiet, "%c%s", found.yes ? '+' : '-', found.text);
    _exit(0);
}

static void read_answer(int fd, struct horon_found *found)
{
    char raw[HORON_FOUND_TEXT_BYTES];
    size_t used = 0;
    struct pollfd readable = {.fd = fd, .events = POLLIN};
    while (used < sizeof raw - 1 && poll(&readable, 1, PATIENCE_MS) > 0) {
        ssize_t got = read(fd, raw + used, sizeof raw - 1 - used);
        if (got <= 0)
            break;
        used += (size_t)got;
    }
    raw[used] = 0;
    found->yes = raw[0] == '+';
    snprintf(found->text, sizeof found->text, "%s",
             used ? raw + 1 : "the library crashed or hung when it was asked");
}

static void ask_in_child(struct horon_found *found, ask_fn ask, const char *which)
{
    int ends[2];
    *found = (struct horon_found){0};
    fflush(NULL);
    if (pipe(ends) != 0) {
        snprintf(found->text, sizeof found->text, "cannot make a pipe: %s", strerror(errno));
        return;
    }
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        answer(ends[1], ask, which);
    }
    close(ends[1]);
    if (pid > 0) {
        read_answer(ends[0], found);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    } else {
        snprintf(found->text, sizeof found->text, "cannot fork: %s", strerror(errno));
    }
    close(ends[0]);
}

static void ask_cuda(struct horon_found *found, const char *which)
{
    int (*init)(unsigned flags) = NULL;
    int (*version)(int *out) = NULL;
    int (*count)(int *out) = NULL;
    int (*name)(char *out, int bytes, int device) = NULL;
    int (*memory)(size_t * out, int device) = NULL;
    int driver = 0, devices = 0;
    void *library = dlopen(which, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        add(found, "%s", dlerror());
        return;
    }
    if (!SYMBOL(init, library, "cuInit") || !SYMBOL(version, library, "cuDriverGetVersion") ||
        !SYMBOL(count, library, "cuDeviceGetCount") || !SYMBOL(name, library, "cuDeviceGetName") ||
        !SYMBOL(memory, library, "cuDeviceTotalMem_v2")) {
        add(found, "%s lacks a function of CUDA's driver interface", which);
        return;
    }
    int failed = init(0);
    if (failed || version(&driver) || count(&devices)) {
        add(found, "%s is here, but cuInit returned %d: no usable GPU or driver", which, failed);
        return;
    }
    found->yes = devices > 0;
    add(found, "CUDA %d.%d, %d GPU%s", driver / 1000, driver % 1000 / 10, devices,
        devices == 1 ? "" : "s");
    for (int i = 0; i < devices; i++) {
        char text[128] = "?";
        size_t bytes = 0;
        if (name(text, sizeof text, i) == 0 && memory(&bytes, i) == 0)
            add(found, "\n%d: %s, %.1f GiB", i, text, (double)bytes / (1 << 30));
    }
}

/* Which file it is. */
static void add_file(struct horon_found *found, void *library)
{
    struct link_map *map = NULL;
    char file[PATH_MAX];
    if (dlinfo(library, RTLD_DI_LINKMAP, (void *)&map) == 0 && map && realpath(map->l_name, file))
        add(found, " from %s", file);
}

static void ask_nccl(struct horon_found *found, const char *which)
{
    int (*version)(int *out) = NULL;
    int number = 0;
    void *library = dlopen(which, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        add(found, "%s", dlerror());
        return;
    }
    if (!SYMBOL(version, library, "ncclGetVersion") || version(&number) != 0) {
        add(found, "%s is here, but does not tell its version", which);
        return;
    }
    found->yes = true;
    int unit = number < 10000 ? 1000 : 10000; /* 2.8 and older: 2804 */
    add(found, "NCCL %d.%d.%d", number / unit, number % unit / 100, number % 100);
    add_file(found, library);
}

static void ask_mpi(struct horon_found *found, const char *which)
{
    int (*version)(char *text, int *bytes) = NULL;
    char text[8192] = ""; /* MPI_MAX_LIBRARY_VERSION_STRING of MPICH */
    int bytes = 0;
    void *library = dlopen(which, RTLD_NOW | RTLD_LOCAL);
    if (!library || !SYMBOL(version, library, "MPI_Get_library_version")) {
        add(found, "%s", dlerror());
        return;
    }
    const char *lacks = horon_mpi_lacks(library);
    if (lacks) {
        add(found, "%s has no %s", which, lacks);
        return;
    }
    version(text, &bytes);
    text[strcspn(text, "\n\r,")] = 0; /* behind the version Open MPI tells of its package */
    for (char *c = text; *c; c++)
        if (*c == '\t')
            *c = ' ';
    found->yes = true;
    add(found, "%.120s", text);
    add_file(found, library);
}

void horon_found_cuda(struct horon_found *found)
{
    ask_in_child(found, ask_cuda, "libcuda.so.1");
}

void horon_found_nccl(struct horon_found *found)
{
    ask_in_child(found, ask_nccl, "libnccl.so.2");
}

/* The file that the setting names. @return NULL: none, or it is wrong */
static const char *chosen_mpi(struct horon_config *config)
{
    const char *const name = "MPI_LIBRARY";
    enum horon_config_origin origin;
    struct horon_error error = {0};
    *config = (struct horon_config){0};
    return horon_config_load_row(config, horon_config_find(name, strlen(name)), &origin, &error) ==
                       HORON_OK &&
                   config->mpi_library[0]
               ? config->mpi_library
               : NULL;
}

/* Of several here, by the launcher: which one is the first that can be loaded? */
static void add_choice(struct horon_found *found, const bool *loads)
{
    const char *const launchers[] = {NULL, "PMI"};
    const char *first[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        const char *name;
        for (size_t at = 0; !first[i] && (name = horon_mpi_usual(launchers[i], at)); at++) {
            size_t number = 0; /* of the same name, among what was asked */
            while (strcmp(horon_mpi_usual(NULL, number), name) != 0)
                number++;
            first[i] = loads[number] ? name : NULL;
        }
    }
    add(found, "; a rank uses its program's own, else %s", first[0]);
    if (strcmp(first[0], first[1]) != 0)
        add(found, ", or %s below MPICH's mpiexec", first[1]);
}

/* Those that a rank would open. */
static void find_mpi(struct horon_found *found)
{
    bool loads[MPI_NAMES_MAX] = {false};
    struct horon_found one;
    int several = 0;
    const char *name;
    *found = (struct horon_found){0};
    for (size_t i = 0; i < MPI_NAMES_MAX && (name = horon_mpi_usual(NULL, i)); i++) {
        ask_in_child(&one, ask_mpi, name);
        loads[i] = one.yes;
        if (!one.yes || strstr(found->text, one.text))
            continue; /* or it is another name of the same library */
        add(found, "%s%s", found->yes ? "; " : "", one.text);
        found->yes = true;
        several++;
    }
    if (several > 1)
        add_choice(found, loads);
    if (found->yes)
        return;
    add(found, "none of");
    for (size_t i = 0; (name = horon_mpi_usual(NULL, i)); i++)
        add(found, " %s", name);
    add(found, " can be loaded");
}

void horon_found_mpi(struct horon_found *found)
{
    struct horon_config config;
    const char *chosen = chosen_mpi(&config);
    if (chosen)
        ask_in_child(found, ask_mpi, chosen);
    else
        find_mpi(found);
}

/* What there would be of a library that this horon does not use. */
static void add_unused(struct horon_found *found, const struct horon_found *library)
{
    add(found, "this horon does not use it (%s: %.400s)",
        library->yes ? "there is" : "nor is it here", library->text);
}

void horon_found_backend(struct horon_found *found, const char *name)
{
    struct horon_found library = {0};
    *found = (struct horon_found){.yes = horon_feature(name)};
    if (strcmp(name, "native") == 0) {
        add(found, "shared memory inside a host, TCP between hosts, of horon %s", horon_version());
    } else if (strcmp(name, "mpi") == 0) {
        horon_found_mpi(found);
    } else if (strcmp(name, "nccl") == 0) {
        horon_found_nccl(&library);
        if (found->yes)
            *found = library;
        else
            add_unused(found, &library);
    } else {
        assert(strcmp(name, "gloo") == 0); /* of any other it would say what is not so */
        add(found,
            "horon %s speaks its wire, as e1 and e3, which needs no library; with HORON_GLOO_STORE",
            horon_version());
    }
}

static void ask_python(struct horon_found *found, const char *which)
{
    static const char script[] =
        "import importlib.util as u, sys\n"
        "print('+' + 'Python %d.%d.%d' % sys.version_info[:3], sys.executable, end='')\n"
        "for m in ('horon', 'numpy', 'torch', 'tensorflow', 'jax'):\n"
        "    print('\\n' + m if u.find_spec(m) else '', end='')\n";
    dup2(STDIN_FILENO, STDOUT_FILENO); /* the pipe; python answers itself */
    execlp(which, which, "-c", script, (char *)NULL);
    add(found, "no %s: %s", which, strerror(errno));
}

static void ask_version(struct horon_found *found, const char *which)
{
    (void)found; /* the "+" stands before what it says */
    dprintf(STDIN_FILENO, "+");
    dup2(STDIN_FILENO, STDOUT_FILENO); /* the pipe, as above */
    dup2(STDIN_FILENO, STDERR_FILENO);
    dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    execlp(which, which, "--version", (char *)NULL);
    dprintf(STDOUT_FILENO, "%s: %s", which, strerror(errno));
    _exit(0);
}

void horon_found_version(struct horon_found *found, const char *program)
{
    ask_in_child(found, ask_version, program);
}

void horon_found_python(struct horon_found *found)
{
    ask_in_child(found, ask_python, "python3");
}
