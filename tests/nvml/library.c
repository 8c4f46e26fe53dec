/* A stand-in for libnvidia-ml.so.1 that says what a file says.
 *
 * The file is named by NVML_SCENARIO and read again whenever it has changed, so that a GPU can be lost
 * in the middle. A line `[gpu]` begins a GPU, `[instance]` a MIG instance of it; what comes before is of
 * the machine. The other lines are `name=value`:
 *
 *     the machine  driver, cuda, count (instead of the number of GPUs), hang=FUNCTION, crash=FUNCTION,
 *                  error.FUNCTION=CODE
 *     a GPU        uuid, name, memory, used, busy, power (mW), temperature, clock, memory_clock, ecc,
 *                  capability (9.0), minor, pci, mig (1: cut), process=PID:BYTES (again and again), links=0,2,
 *                  xid=NUMBER OF THE EVENT:CODE, pcie_sent, pcie_received, nvlink_sent, nvlink_received
 *                  (bytes a second), error=CODE (of every question), error.FUNCTION=CODE
 *                  gpm (1: instances tell how busy they are)
 *     an instance  uuid, name, memory, used, id, busy, process
 *
 * A value that is missing, or N/A, is not supported. The functions have the signatures of NVML 13; see
 * the 'NVML API Reference Guide' of NVIDIA.
 */

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define INSUFFICIENT_SIZE 7
#define TIMEOUT 10

#define GPUS 16
#define INSTANCES 8
#define LINES 64
#define TEXT 160
#define ALL 0xFFFFFFFFu

typedef struct {
    int lines;
    char name[LINES][48];
    char value[LINES][TEXT];
} Section;

typedef void *Device; /* 1 + GPU * (INSTANCES + 1), + 1 + instance of an instance */

static Section machine, gpus[GPUS], instances[GPUS][INSTANCES];
static int gpu_count, instance_count[GPUS];
static long told[GPUS]; /* number of the last Xid event that was taken */
static int listening[GPUS];

/* -- the scenario ------------------------------------------------------------------------------- */

static void read_scenario(void) {
    static struct stat known;
    const char *path = getenv("NVML_SCENARIO");
    struct stat now;
    if (path == NULL || stat(path, &now) != 0) {
        fprintf(stderr, "NVML_SCENARIO names no file\n");
        abort();
    }
    if (now.st_ino == known.st_ino && now.st_mtim.tv_sec == known.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == known.st_mtim.tv_nsec)
        return;
    known = now;
    FILE *file = fopen(path, "r");
    if (file == NULL)
        abort();
    memset(&machine, 0, sizeof machine);
    memset(gpus, 0, sizeof gpus);
    memset(instances, 0, sizeof instances);
    memset(instance_count, 0, sizeof instance_count);
    gpu_count = 0;
    Section *section = &machine;
    char line[256];
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *value = strchr(line, '=');
        if (strcmp(line, "[gpu]") == 0) {
            section = &gpus[gpu_count++];
        } else if (strcmp(line, "[instance]") == 0) {
            int gpu = gpu_count - 1;
            section = &instances[gpu][instance_count[gpu]++];
        } else if (value != NULL && section->lines < LINES) {
            *value = 0;
            snprintf(section->name[section->lines], sizeof section->name[0], "%.47s", line);
            snprintf(section->value[section->lines], sizeof section->value[0], "%.159s", value + 1);
            section->lines++;
        }
    }
    fclose(file);
}

static const char *get(const Section *section, const char *name) {
    for (int i = 0; i < section->lines; i++)
        if (strcmp(section->name[i], name) == 0)
            return strcmp(section->value[i], "N/A") == 0 ? NULL : section->value[i];
    return NULL;
}

static int forced(const Section *section, const char *function) {
    char name[64];
    snprintf(name, sizeof name, "error.%s", function);
    const char *code = get(section, name);
    return code == NULL ? SUCCESS : atoi(code);
}

/* What every function begins with: it may hang, crash or fail instead. */
static int enter(const char *function) {
    read_scenario();
    const char *hang = get(&machine, "hang"), *crash = get(&machine, "crash");
    while (hang != NULL && strcmp(hang, function) == 0)
        pause();
    if (crash != NULL && strcmp(crash, function) == 0)
        raise(SIGSEGV);
    return forced(&machine, function);
}

static int index_of(Device device) { return (int)((intptr_t)device - 1) / (INSTANCES + 1); }

static int instance_of(Device device) { return (int)((intptr_t)device - 1) % (INSTANCES + 1) - 1; }

static Device handle(int gpu, int instance) { return (Device)(intptr_t)(1 + gpu * (INSTANCES + 1) + 1 + instance); }

static Section *section_of(Device device) {
    int gpu = index_of(device), instance = instance_of(device);
    return instance < 0 ? &gpus[gpu] : &instances[gpu][instance];
}

static int enter_device(const char *function, Device device) {
    int result = enter(function);
    if (result != SUCCESS)
        return result;
    if (device == NULL || index_of(device) >= gpu_count)
        return INVALID_ARGUMENT;
    const Section *gpu = &gpus[index_of(device)];
    const char *all = get(gpu, "error");
    if (all != NULL)
        return atoi(all);
    result = forced(gpu, function);
    return result != SUCCESS ? result : forced(section_of(device), function);
}

static int text(const Section *section, const char *name, char *to, unsigned size) {
    const char *value = get(section, name);
    if (value == NULL)
        return NOT_SUPPORTED;
    if (strlen(value) + 1 > size)
        return INSUFFICIENT_SIZE;
    strcpy(to, value);
    return SUCCESS;
}

static int number(const Section *section, const char *name, unsigned *to) {
    const char *value = get(section, name);
    if (value == NULL)
        return NOT_SUPPORTED;
    *to = (unsigned)strtoull(value, NULL, 10);
    return SUCCESS;
}

static int number64(const Section *section, const char *name, unsigned long long *to) {
    const char *value = get(section, name);
    if (value == NULL)
        return NOT_SUPPORTED;
    *to = strtoull(value, NULL, 10);
    return SUCCESS;
}

#define ENTER()                        \
    do {                               \
        int result_ = enter(__func__); \
        if (result_ != SUCCESS)        \
            return result_;            \
    } while (0)

#define ENTER_DEVICE(device)                          \
    do {                                              \
        int result_ = enter_device(__func__, device); \
        if (result_ != SUCCESS)                       \
            return result_;                           \
    } while (0)

/* -- the machine -------------------------------------------------------------------------------- */

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    ENTER();
    return SUCCESS;
}

int nvmlShutdown(void) {
    ENTER();
    return SUCCESS;
}

const char *nvmlErrorString(int code) {
    static char words[32];
    snprintf(words, sizeof words, "Error %d", code);
    return words;
}

int nvmlSystemGetDriverVersion(char *to, unsigned size) {
    ENTER();
    return text(&machine, "driver", to, size);
}

int nvmlSystemGetCudaDriverVersion_v2(int *to) {
    ENTER();
    return number(&machine, "cuda", (unsigned *)to);
}

int nvmlDeviceGetCount_v2(unsigned *to) {
    ENTER();
    if (number(&machine, "count", to) != SUCCESS)
        *to = (unsigned)gpu_count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *to) {
    ENTER();
    if (index >= (unsigned)gpu_count)
        return INVALID_ARGUMENT;
    *to = handle((int)index, -1);
    return forced(&gpus[index], __func__);
}

/* -- what a device is --------------------------------------------------------------------------- */

int nvmlDeviceGetUUID(Device device, char *to, unsigned size) {
    ENTER_DEVICE(device);
    return text(section_of(device), "uuid", to, size);
}

int nvmlDeviceGetName(Device device, char *to, unsigned size) {
    ENTER_DEVICE(device);
    return text(section_of(device), "name", to, size);
}

int nvmlDeviceGetMinorNumber(Device device, unsigned *to) {
    ENTER_DEVICE(device);
    return number(section_of(device), "minor", to);
}

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} Pci;

int nvmlDeviceGetPciInfo_v3(Device device, Pci *to) {
    ENTER_DEVICE(device);
    return text(section_of(device), "pci", to->bus_id, sizeof to->bus_id);
}

int nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) {
    ENTER_DEVICE(device);
    const char *value = get(&gpus[index_of(device)], "capability");
    return value != NULL && sscanf(value, "%d.%d", major, minor) == 2 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetMigMode(Device device, unsigned *current, unsigned *pending) {
    ENTER_DEVICE(device);
    int result = number(section_of(device), "mig", current);
    *pending = *current;
    return result;
}

int nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *to) {
    ENTER_DEVICE(device);
    *to = INSTANCES;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned number, Device *to) {
    ENTER_DEVICE(device);
    int gpu = index_of(device);
    if (number >= (unsigned)instance_count[gpu])
        return NOT_FOUND;
    *to = handle(gpu, (int)number);
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(Device device, unsigned *to) {
    ENTER_DEVICE(device);
    return number(section_of(device), "id", to);
}

int nvmlDeviceGetP2PStatus(Device one, Device other, int kind, int *to) {
    ENTER_DEVICE(one);
    const char *links = get(section_of(one), "links");
    *to = 5; /* not supported by this pair */
    while (kind == 2 && links != NULL && *links) {
        char *end;
        if ((int)strtol(links, &end, 10) == index_of(other))
            *to = 0;
        links = *end ? end + 1 : end;
    }
    return SUCCESS;
}

/* -- what a device does ------------------------------------------------------------------------- */

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} Memory;

int nvmlDeviceGetMemoryInfo_v2(Device device, Memory *to) {
    ENTER_DEVICE(device);
    if (number64(section_of(device), "memory", &to->total) != SUCCESS)
        return NOT_SUPPORTED;
    to->used = 0;
    number64(section_of(device), "used", &to->used);
    to->reserved = 0;
    to->free = to->total - to->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(Device device, unsigned *to) {
    ENTER_DEVICE(device);
    to[1] = 0;
    return number(section_of(device), instance_of(device) < 0 ? "busy" : "", &to[0]);
}

int nvmlDeviceGetPowerUsage(Device device, unsigned *to) {
    ENTER_DEVICE(device);
    return number(section_of(device), "power", to);
}

int nvmlDeviceGetTemperature(Device device, int sensor, unsigned *to) {
    ENTER_DEVICE(device);
    return sensor == 0 ? number(section_of(device), "temperature", to) : INVALID_ARGUMENT;
}

int nvmlDeviceGetClockInfo(Device device, int kind, unsigned *to) {
    ENTER_DEVICE(device);
    return number(section_of(device), kind == 1 ? "clock" : kind == 2 ? "memory_clock" : "", to);
}

int nvmlDeviceGetTotalEccErrors(Device device, int kind, int counter, unsigned long long *to) {
    ENTER_DEVICE(device);
    return kind == 1 && counter == 0 ? number64(section_of(device), "ecc", to) : INVALID_ARGUMENT;
}

typedef struct {
    unsigned pid;
    unsigned long long memory;
    unsigned instance, compute_instance;
} Process;

int nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, Process *to) {
    ENTER_DEVICE(device);
    const Section *section = section_of(device);
    unsigned found = 0;
    for (int i = 0; i < section->lines; i++) {
        if (strcmp(section->name[i], "process") != 0)
            continue;
        if (found < *count) {
            char *end;
            to[found].pid = (unsigned)strtoul(section->value[i], &end, 10);
            to[found].memory = strcmp(end, ":N/A") == 0 ? (unsigned long long)-1 : strtoull(end + 1, NULL, 10);
            to[found].instance = to[found].compute_instance = ALL;
        }
        found++;
    }
    int result = found > *count ? INSUFFICIENT_SIZE : SUCCESS;
    *count = found;
    return result;
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(Device device, unsigned *count, Process *to) {
    (void)to;
    ENTER_DEVICE(device);
    *count = 0;
    return SUCCESS;
}

typedef struct {
    unsigned field, scope;
    int64_t timestamp, latency;
    unsigned type;
    int result;
    union {
        double d;
        unsigned long long ull;
    } value;
} Field;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

int nvmlDeviceGetFieldValues(Device device, int count, Field *fields) {
    ENTER_DEVICE(device);
    for (int i = 0; i < count; i++) {
        unsigned kind = fields[i].field;
        int link = kind == 138 || kind == 139;
        const char *name = kind == 197   ? "pcie_sent"
                           : kind == 198 ? "pcie_received"
                           : kind == 138 ? "nvlink_sent"
                           : kind == 139 ? "nvlink_received"
                                         : "";
        unsigned long long rate = 0;
        fields[i].result = link && fields[i].scope != ALL ? INVALID_ARGUMENT
                                                          : number64(section_of(device), name, &rate);
        fields[i].type = 3;
        fields[i].value.ull = (unsigned long long)((double)rate * now()) / (link ? 1024 : 1);
    }
    return SUCCESS;
}

/* -- how busy an instance is -------------------------------------------------------------------- */

typedef struct {
    Device device;
} Sample;

typedef struct {
    unsigned id;
    int result;
    double value;
    char *names[3];
} Metric;

typedef struct {
    unsigned version, count;
    Sample *first, *second;
    Metric metrics[];
} Metrics;

int nvmlGpmQueryDeviceSupport(Device device, unsigned *to) {
    ENTER_DEVICE(device);
    to[1] = 0;
    number(section_of(device), "gpm", &to[1]);
    return SUCCESS;
}

int nvmlGpmSampleAlloc(Sample **to) {
    ENTER();
    *to = calloc(1, sizeof **to);
    return SUCCESS;
}

int nvmlGpmSampleFree(Sample *sample) {
    ENTER();
    free(sample);
    return SUCCESS;
}

int nvmlGpmMigSampleGet(Device device, unsigned id, Sample *to) {
    ENTER_DEVICE(device);
    int gpu = index_of(device);
    for (int i = 0; i < instance_count[gpu]; i++) {
        unsigned own = 0;
        number(&instances[gpu][i], "id", &own);
        if (own == id) {
            to->device = handle(gpu, i);
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

int nvmlGpmMetricsGet(Metrics *to) {
    ENTER();
    if (to->version != 1 || to->count != 1 || to->first->device != to->second->device)
        return INVALID_ARGUMENT;
    unsigned busy = 0;
    to->metrics[0].result = number(section_of(to->second->device), "busy", &busy);
    to->metrics[0].value = busy;
    return SUCCESS;
}

/* -- events ------------------------------------------------------------------------------------- */

typedef struct {
    Device device;
    unsigned long long type, data;
    unsigned instance, compute_instance;
} Event;

static long event_of(int gpu, long *code) {
    const char *value = get(&gpus[gpu], "xid");
    long serial = 0;
    return value != NULL && sscanf(value, "%ld:%ld", &serial, code) == 2 ? serial : 0;
}

int nvmlEventSetCreate(void **to) {
    ENTER();
    *to = &listening;
    return SUCCESS;
}

int nvmlEventSetFree(void *set) {
    (void)set;
    ENTER();
    memset(listening, 0, sizeof listening);
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(Device device, unsigned long long types, void *set) {
    (void)set;
    ENTER_DEVICE(device);
    long code;
    int gpu = index_of(device);
    if (types != 8)
        return INVALID_ARGUMENT;
    listening[gpu] = 1;
    told[gpu] = event_of(gpu, &code);
    return SUCCESS;
}

int nvmlEventSetWait_v2(void *set, Event *to, unsigned milliseconds) {
    (void)set, (void)milliseconds;
    ENTER();
    for (int gpu = 0; gpu < gpu_count; gpu++) {
        long code = 0, serial = event_of(gpu, &code);
        if (listening[gpu] && serial > told[gpu]) {
            told[gpu] = serial;
            to->device = handle(gpu, -1);
            to->type = 8;
            to->data = (unsigned long long)code;
            to->instance = to->compute_instance = ALL;
            return SUCCESS;
        }
    }
    return TIMEOUT;
}
