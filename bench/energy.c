/* Joules from RAPL (Documentation/power/powercap in Linux): each zone intel-rapl:N of /sys/class/powercap counts
 * microjoules in energy_uj, up to max_energy_range_uj and from 0 again; AMD's processors have the same zones. A zone
 * "package-0" is a socket with its cores, caches and memory controller; its parts (intel-rapl:0:1) and the platform
 * (psys), which has the packages in it, would count twice. Since 2020 most systems let only root read them. */
#include "bench/bench.h"

#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static bool read_line(char line[64], const char *zone, const char *file) {
    char path[320];
    snprintf(path, sizeof path, "%s/%s", zone, file);
    FILE *f = fopen(path, "re");
    const bool ok = f && fgets(line, 64, f);
    if (f) fclose(f);
    return ok;
}

static bool read_count(uint64_t *out, const char *zone, const char *file) {
    char line[64];
    return read_line(line, zone, file) && sscanf(line, "%" SCNu64, out) == 1;
}

static bool is_package(const char *zone, const char *name) {
    static const char prefix[] = "intel-rapl:";
    char line[64];
    return !strncmp(name, prefix, sizeof prefix - 1) && !strchr(name + sizeof prefix - 1, ':') &&
           read_line(line, zone, "name") && !strncmp(line, "package", 7);
}

void bench_energy_open(bench_energy *e, const char *folder) {
    if (!folder) folder = "/sys/class/powercap";
    DIR *d = opendir(folder);
    bool all = true;
    *e = (bench_energy){0};
    for (struct dirent *entry; d && (entry = readdir(d));) {
        bench_package *p = &e->package[e->n_packages];
        const int len = snprintf(p->zone, sizeof p->zone, "%s/%s", folder, entry->d_name);
        if (len >= (int)sizeof p->zone || !is_package(p->zone, entry->d_name)) continue;
        all = all && read_count(&p->last_uj, p->zone, "energy_uj") &&
              read_count(&p->range_uj, p->zone, "max_energy_range_uj");
        if (++e->n_packages == BENCH_MAX_PACKAGES) break;
    }
    if (d) closedir(d);
    if (!all) e->n_packages = 0;
}

double bench_energy_lap(bench_energy *e) {
    double joules = 0;
    for (int i = 0; i < e->n_packages; i++) {
        bench_package *p = &e->package[i];
        uint64_t now;
        if (!read_count(&now, p->zone, "energy_uj")) return NAN;
        const uint64_t turned = now < p->last_uj ? p->range_uj : 0;
        joules += (double)(now + turned - p->last_uj) / 1e6;
        p->last_uj = now;
    }
    return e->n_packages ? joules : NAN;
}
