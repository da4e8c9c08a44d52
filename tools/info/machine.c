/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cores and memory as hwloc sees them, and the limits that decide whether ranks get their shared
 * memory: what the system has left, what the cgroup allows, and whether a sealed memfd can be made
 * at all. Networks are in networks.c, libraries in found.c.
 */
#include "machine.h"

#include "host/memory.h"
#include "host/process.h"

#include <errno.h>
#include <fcntl.h>
#include <hwloc.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#define GIB ((double)(1 << 30))
#define LABEL_WIDTH 16

void horon_info_row(FILE *to, const char *label, const char *format, ...)
{
    char text[4096];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    for (const char *line = text;;) {
        int bytes = (int)strcspn(line, "\n");
        fprintf(to, "  %-*s  %.*s\n", LABEL_WIDTH, line == text ? label : "", bytes, line);
        line += bytes;
        if (!*line++)
            return;
    }
}

/* The first line of a small file; "" if it cannot be read. */
static void read_line(const char *path, char *line, size_t bytes)
{
    FILE *in = fopen(path, "re");
    line[0] = 0;
    if (!in)
        return;
    if (!fgets(line, (int)bytes, in))
        line[0] = 0;
    line[strcspn(line, "\n")] = 0;
    fclose(in);
}

static const char *plural(int count)
{
    return count == 1 ? "" : "s";
}

static void print_cores(FILE *to, hwloc_topology_t topology)
{
    int packages = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PACKAGE);
    int cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
    int threads = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU);
    int nodes = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);
    cpu_set_t allowed;
    horon_info_row(to, "cores", "%d core%s, %d hardware thread%s, %d package%s, %d NUMA node%s",
                   cores, plural(cores), threads, plural(threads), packages, plural(packages),
                   nodes, plural(nodes));
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        horon_info_row(to, "", "this process may use %d hardware thread%s", CPU_COUNT(&allowed),
                       plural(CPU_COUNT(&allowed)));
    for (int i = 0; nodes > 1 && i < nodes; i++) {
        hwloc_obj_t node = hwloc_get_obj_by_type(topology, HWLOC_OBJ_NUMANODE, (unsigned)i);
        char label[32];
        snprintf(label, sizeof label, "NUMA node %u", node->os_index);
        horon_info_row(
            to, label, "%d cores, %.1f GiB",
            hwloc_get_nbobjs_inside_cpuset_by_type(topology, node->cpuset, HWLOC_OBJ_CORE),
            (double)node->attr->numanode.local_memory / GIB);
    }
}

static void print_topology(FILE *to)
{
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) != 0 || hwloc_topology_load(topology) != 0) {
        horon_info_row(to, "cores", "hwloc cannot read the topology: %s", strerror(errno));
        return;
    }
    print_cores(to, topology);
    hwloc_topology_destroy(topology);
}

/* @return the number on the line of /proc/meminfo that begins with @p name, in bytes; 0 if absent
 * */
static double memory_line(const char *name)
{
    char line[256];
    double bytes = 0;
    FILE *in = fopen("/proc/meminfo", "re");
    while (in && bytes == 0 && fgets(line, sizeof line, in))
        if (strncmp(line, name, strlen(name)) == 0)
            bytes = 1024. * strtod(line + strlen(name), NULL);
    if (in)
        fclose(in);
    return bytes;
}

/* The tightest memory limit on the way from our cgroup (version 2) to the root; 0: none. */
static double cgroup_limit(void)
{
    char line[2048], path[4096], value[64];
    double least = 0;
    read_line("/proc/self/cgroup", line, sizeof line);
    if (strncmp(line, "0::", 3) != 0)
        return 0;
    for (char *group = line + 3;;) {
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", group);
        read_line(path, value, sizeof value);
        double limit = strtod(value, NULL); /* "max" gives 0 */
        if (limit > 0 && (least == 0 || limit < least))
            least = limit;
        char *slash = strrchr(group, '/');
        if (!slash || !slash[1])
            return least;
        *slash = 0;
    }
}

static void print_memory(FILE *to)
{
    double limit = cgroup_limit();
    horon_info_row(to, "memory", "%.1f GiB, %.1f GiB available", memory_line("MemTotal:") / GIB,
                   memory_line("MemAvailable:") / GIB);
    if (limit > 0)
        horon_info_row(to, "", "the cgroup allows %.1f GiB", limit / GIB);
}

/* What the runtime does for an arena, with one page. */
static const char *try_memfd(void)
{
    const char *failed = NULL;
    int fd = horon_memory_fd("horon-info");
    if (fd < 0)
        return "memfd_create";
    if (ftruncate(fd, 4096) != 0 || fallocate(fd, 0, 0, 4096) != 0)
        failed = "fallocate";
    else if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
        failed = "sealing";
    close(fd);
    return failed;
}

static void print_shared_memory(FILE *to)
{
    struct statvfs shm;
    struct rlimit files;
    const char *failed = try_memfd();
    if (failed)
        horon_info_row(to, "shared memory", "no: %s is refused: %s", failed, strerror(errno));
    else
        horon_info_row(to, "shared memory", "sealed memfds work");
    horon_info_row(
        to, "", "long messages are copied %s",
        horon_process_may_read_others("/proc")
            ? "once: a rank may read another's memory"
            : "twice: ptrace_scope or seccomp keeps ranks from reading another's memory");
    if (statvfs("/dev/shm", &shm) == 0)
        horon_info_row(to, "", "/dev/shm: %.1f GiB free of %.1f GiB (horon does not need it)",
                       (double)shm.f_bavail * (double)shm.f_frsize / GIB,
                       (double)shm.f_blocks * (double)shm.f_frsize / GIB);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0)
        horon_info_row(to, "open files", "%llu, could be raised to %llu",
                       (unsigned long long)files.rlim_cur, (unsigned long long)files.rlim_max);
}

void horon_info_print_machine(FILE *to)
{
    struct utsname system;
    if (uname(&system) == 0)
        horon_info_row(to, "host", "%s, %s %s, %s", system.nodename, system.sysname, system.release,
                       system.machine);
    print_topology(to);
    print_memory(to);
    print_shared_memory(to);
}
