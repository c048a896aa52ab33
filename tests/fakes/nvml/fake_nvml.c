/* A stand-in for libnvidia-ml.so.1: its devices are read from the file $FAKE_NVML at every call.
 *
 * The file, one word and its value per line (`#` starts a comment line):
 *
 *   init_error N            nvmlInit answers N (9: driver not loaded, 18: version mismatch, ...)
 *   gone                    the driver has vanished: every call answers 9, open sessions are lost
 *   hang CALL               a call whose name holds CALL (or `any`) never returns
 *   device                  begins a GPU; the lines below belong to it
 *   mig                     begins a MIG instance of the last GPU, which is then in MIG mode
 *     uuid TEXT             name TEXT              pci DDDD:BB:DD.F
 *     memory_total MIB|na   memory_used MIB|na     (na: all ones, as NVML marks the unknown)
 *     utilization PERCENT   temperature CELSIUS    power MILLIWATT
 *     process PID compute|graphics MIB|na          as many as there are
 *     claims DIRECTORY      so has every living process with a file there: its name is the pid,
 *                           it holds the MiB, and they add to memory_used (see claims.py)
 *     not_supported FIELD   FIELD answers 3: memory memory_v2 utilization temperature power pci
 *                           name mig compute graphics
 *     minor N               of the device file; without it not supported
 *     slowdown C            the temperature at which it slows down; without it not supported
 *     ecc N                 uncorrectable memory errors; without it not supported
 *     xid N                 a fault, reported once per process and value
 *     lost                  every call about this GPU answers 15
 *     reset                 every call about this GPU, but its UUID, answers 16
 */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       TOO_SMALL = 7, NOT_LOADED = 9, TIMEOUT = 10, LOST = 15, RESET = 16 };
enum { MAX_DEVICES = 256, MAX_PROCESSES = 64, MAX_MIG = 8 };

typedef struct { unsigned pid; int graphics; unsigned long long memory; } process_t;
typedef struct {
    int parent; /* -1: a GPU; else the place of its GPU in `devices` */
    char uuid[96], name[96], not_supported[256];
    unsigned domain, bus, slot;
    unsigned long long total, used;
    unsigned utilization, temperature, power, slowdown, xid;
    int ecc, minor;
    int lost, reset, migs[MAX_MIG], mig_count;
    process_t processes[MAX_PROCESSES];
    int process_count;
} device_t;

typedef struct { unsigned pid; unsigned long long memory; unsigned gpu, compute; } info_t;

static device_t devices[MAX_DEVICES];
static int device_count, init_error, gone, initialized;
static char hanging[64];

static unsigned long long bytes(const char *text) {
    return strcmp(text, "na") == 0 ? ~0ULL : strtoull(text, NULL, 10) << 20;
}

static device_t *begin(int parent) {
    if (device_count == MAX_DEVICES) return &devices[MAX_DEVICES - 1];
    device_t *device = &devices[device_count++];
    memset(device, 0, sizeof *device);
    device->parent = parent;
    device->ecc = device->minor = -1;
    return device;
}

/* What processes say themselves that they use, as long as they live. */
static void add_claims(device_t *device, const char *path) {
    DIR *directory = opendir(path);
    struct dirent *entry;
    char name[512];
    while (directory && (entry = readdir(directory))) {
        int pid = atoi(entry->d_name);
        unsigned long long size = 0;
        if (pid <= 0 || device->process_count == MAX_PROCESSES) continue;
        if (kill(pid, 0) && errno == ESRCH) continue;
        snprintf(name, sizeof name, "%s/%d", path, pid);
        FILE *file = fopen(name, "r");
        int found = file && fscanf(file, "%llu", &size) == 1;
        if (file) fclose(file);
        if (!found) continue;
        process_t *process = &device->processes[device->process_count++];
        process->pid = pid;
        process->graphics = 0;
        process->memory = size << 20;
        device->used += size << 20;
    }
    if (directory) closedir(directory);
}

static void load(void) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512], word[64], kind[16], size[32];
    device_t *now = NULL;
    int gpu = -1;
    device_count = init_error = gone = 0;
    hanging[0] = 0;
    if (!file) { gone = 1; return; }
    while (fgets(line, sizeof line, file)) {
        int used = 0;
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, " %63s %n", word, &used) < 1 || word[0] == '#') continue;
        const char *value = line + used;
        if (!strcmp(word, "init_error")) init_error = atoi(value);
        else if (!strcmp(word, "gone")) gone = 1;
        else if (!strcmp(word, "hang")) snprintf(hanging, sizeof hanging, "%s", value);
        else if (!strcmp(word, "device")) { gpu = device_count; now = begin(-1); }
        else if (!strcmp(word, "mig") && gpu >= 0) {
            if (devices[gpu].mig_count < MAX_MIG)
                devices[gpu].migs[devices[gpu].mig_count++] = device_count;
            now = begin(gpu);
        }
        else if (!now) continue;
        else if (!strcmp(word, "uuid")) snprintf(now->uuid, sizeof now->uuid, "%s", value);
        else if (!strcmp(word, "name")) snprintf(now->name, sizeof now->name, "%s", value);
        else if (!strcmp(word, "pci")) sscanf(value, "%x:%x:%x", &now->domain, &now->bus, &now->slot);
        else if (!strcmp(word, "memory_total")) now->total = bytes(value);
        else if (!strcmp(word, "memory_used")) now->used = bytes(value);
        else if (!strcmp(word, "utilization")) now->utilization = atoi(value);
        else if (!strcmp(word, "temperature")) now->temperature = atoi(value);
        else if (!strcmp(word, "power")) now->power = atoi(value);
        else if (!strcmp(word, "minor")) now->minor = atoi(value);
        else if (!strcmp(word, "slowdown")) now->slowdown = atoi(value);
        else if (!strcmp(word, "ecc")) now->ecc = atoi(value);
        else if (!strcmp(word, "xid")) now->xid = atoi(value);
        else if (!strcmp(word, "lost")) now->lost = 1;
        else if (!strcmp(word, "reset")) now->reset = 1;
        else if (!strcmp(word, "not_supported")) {
            size_t end = strlen(now->not_supported);
            snprintf(now->not_supported + end, sizeof now->not_supported - end, " %s ", value);
        }
        else if (!strcmp(word, "claims")) add_claims(now, value);
        else if (!strcmp(word, "process") && now->process_count < MAX_PROCESSES) {
            process_t *process = &now->processes[now->process_count++];
            if (sscanf(value, "%u %15s %31s", &process->pid, kind, size) != 3) continue;
            process->graphics = !strcmp(kind, "graphics");
            process->memory = bytes(size);
        }
    }
    fclose(file);
}

/* What every call does first. */
static int enter(const char *call) {
    load();
    if (hanging[0] && (!strcmp(hanging, "any") || strstr(call, hanging)))
        for (;;) pause();
    if (gone) { initialized = 0; return NOT_LOADED; }
    if (!strstr(call, "Init") && !initialized) return UNINITIALIZED;
    return OK;
}

static int gpu_number(int index) {
    for (int at = 0; at < device_count; at++)
        if (devices[at].parent < 0 && index-- == 0) return at;
    return -1;
}

/* A handle is a device's place in the file, plus one. */
static int find(const char *call, void *handle, const char *field, device_t **found) {
    int code = enter(call), at = (int)(size_t)handle - 1;
    char wanted[64];
    if (code) return code;
    if (at < 0 || at >= device_count) return INVALID;
    *found = &devices[at];
    device_t *gpu = (*found)->parent < 0 ? *found : &devices[(*found)->parent];
    if (gpu->lost) return LOST;
    if (gpu->reset && strcmp(field, "uuid")) return RESET;
    snprintf(wanted, sizeof wanted, " %s ", field);
    return strstr((*found)->not_supported, wanted) ? NOT_SUPPORTED : OK;
}

#define FIND(field)                                         \
    device_t *device;                                       \
    int code = find(__func__, handle, field, &device);      \
    if (code) return code

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int code = enter(__func__);
    if (!code) code = init_error;
    initialized = !code;
    return code;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { int code = enter(__func__); initialized = 0; return code; }

const char *nvmlErrorString(int code) {
    static char text[32];
    snprintf(text, sizeof text, "error %d", code);
    return text;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    int code = enter(__func__);
    if (code) return code;
    *count = 0;
    for (int at = 0; at < device_count; at++) *count += devices[at].parent < 0;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    int code = enter(__func__), at;
    if (code) return code;
    if ((at = gpu_number((int)index)) < 0) return INVALID;
    if (devices[at].lost) return LOST;
    *handle = (void *)(size_t)(at + 1);
    return OK;
}

int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    FIND("uuid");
    snprintf(text, size, "%s", device->uuid);
    return OK;
}

int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    FIND("name");
    snprintf(text, size, "%s", device->name);
    return OK;
}

int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *info) {
    FIND("memory");
    info[0] = device->total; /* total, free, used */
    info[1] = device->total - device->used;
    info[2] = device->used;
    return OK;
}

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory2_t;
int nvmlDeviceGetMemoryInfo_v2(void *handle, memory2_t *info) {
    FIND("memory_v2");
    if (strstr(device->not_supported, " memory ")) return NOT_SUPPORTED;
    info->total = device->total;
    info->reserved = 0;
    info->free = device->total - device->used;
    info->used = device->used;
    return OK;
}

int nvmlDeviceGetUtilizationRates(void *handle, unsigned *rates) {
    FIND("utilization");
    if (device->parent >= 0) return NOT_SUPPORTED; /* as for real MIG instances */
    rates[0] = device->utilization;
    rates[1] = 0;
    return OK;
}

int nvmlDeviceGetTemperature(void *handle, unsigned sensor, unsigned *degrees) {
    (void)sensor;
    FIND("temperature");
    if (device->parent >= 0) return INVALID;
    *degrees = device->temperature;
    return OK;
}

int nvmlDeviceGetTemperatureThreshold(void *handle, unsigned which, unsigned *degrees) {
    FIND("slowdown");
    if (which != 1 || !device->slowdown) return NOT_SUPPORTED;
    *degrees = device->slowdown;
    return OK;
}

int nvmlDeviceGetMinorNumber(void *handle, unsigned *minor) {
    FIND("minor");
    if (device->minor < 0) return NOT_SUPPORTED;
    *minor = device->minor;
    return OK;
}

int nvmlDeviceGetTotalEccErrors(void *handle, unsigned kind, unsigned counter,
                                unsigned long long *count) {
    FIND("ecc");
    if (kind != 1 || counter != 0 || device->ecc < 0) return NOT_SUPPORTED;
    *count = device->ecc;
    return OK;
}

typedef struct {
    void *device;
    unsigned long long type, data;
    unsigned gpu, compute;
} fault_t;
static unsigned registered[MAX_DEVICES], reported[MAX_DEVICES];

int nvmlEventSetCreate(void **set) {
    int code = enter(__func__);
    *set = (void *)1;
    return code;
}

int nvmlDeviceRegisterEvents(void *handle, unsigned long long types, void *set) {
    FIND("xid");
    (void)set;
    registered[device - devices] = types == 8;
    return OK;
}

int nvmlEventSetWait_v2(void *set, fault_t *fault, unsigned milliseconds) {
    int code = enter(__func__);
    (void)set, (void)milliseconds;
    if (code) return code;
    for (int at = 0; at < device_count; at++) {
        if (!registered[at] || !devices[at].xid || devices[at].xid == reported[at]) continue;
        reported[at] = devices[at].xid;
        fault->device = (void *)(size_t)(at + 1);
        fault->type = 8;
        fault->data = devices[at].xid;
        return OK;
    }
    return TIMEOUT;
}

int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatt) {
    FIND("power");
    if (device->parent >= 0) return NOT_SUPPORTED;
    *milliwatt = device->power;
    return OK;
}

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char text[32];
} pci_t;
int nvmlDeviceGetPciInfo_v3(void *handle, pci_t *info) {
    FIND("pci");
    memset(info, 0, sizeof *info);
    info->domain = device->domain;
    info->bus = device->bus;
    info->device = device->slot;
    snprintf(info->text, sizeof info->text, "%08X:%02X:%02X.0", device->domain, device->bus,
             device->slot);
    return OK;
}

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    FIND("mig");
    *current = *pending = device->mig_count > 0;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) {
    FIND("mig");
    *count = MAX_MIG - 1;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **instance) {
    FIND("mig");
    if ((int)index >= device->mig_count) return NOT_FOUND;
    *instance = (void *)(size_t)(device->migs[index] + 1);
    return OK;
}

static int list(device_t *device, int graphics, unsigned *count, info_t *infos) {
    unsigned room = *count, found = 0;
    for (int at = 0; at < device->process_count; at++) {
        process_t *process = &device->processes[at];
        if (process->graphics != graphics) continue;
        if (infos && found < room) {
            infos[found].pid = process->pid;
            infos[found].memory = process->memory;
            infos[found].gpu = infos[found].compute = ~0U;
        }
        found++;
    }
    *count = found;
    return found > room ? TOO_SMALL : OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, info_t *infos) {
    FIND("compute");
    return list(device, 0, count, infos);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, info_t *infos) {
    FIND("graphics");
    return list(device, 1, count, infos);
}
