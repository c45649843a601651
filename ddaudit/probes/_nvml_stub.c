/* A stand-in for libnvidia-ml.so.1: healthy GPUs under load, and one named fault at a time.
 *
 * Built by _nvml_stub.py. Faults are set through ddaudit_stub_set(name, value) before nvmlInitWithFlags. Built with
 * OLD_DRIVER it lacks the entry points that came late, as an old driver does.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef unsigned int uint;
typedef unsigned long long u64;
typedef struct gpu { int index; long calls; } *gpu_t;

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4,
       INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15 };
enum { MAX_GPUS = 16, MAX_LINKS = 18 };

/* Values are indices of the faulty GPU where the name says nothing else; -1 is none. */
static struct { const char *name; long value; } settings[] = {
    {"count", 2}, {"init_error", 0}, {"lost", -1}, {"lost_after", 0}, {"throttle", -1}, {"brake", -1}, {"capped", -1},
    {"ecc", -1}, {"corrected", -1}, {"remap_pending", -1}, {"remap_failed", -1}, {"pcie_gen", -1}, {"pcie_width", -1},
    {"idle", 0}, {"link_down", -1}, {"link_errors", -1}, {"no_links", 0}, {"other_pid", 0}, {"persistence_off", -1},
    {"deny", -1}, {"slow", -1}, {"slow_ms", 400}, {"mig", -1}, {"gpm", 0},
};
static struct gpu gpus[MAX_GPUS];
static int running = 0;

static long get(const char *name) {
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (!strcmp(settings[i].name, name)) return settings[i].value;
    return -1;
}

int ddaudit_stub_set(const char *name, long value) {
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (!strcmp(settings[i].name, name)) { settings[i].value = value; return SUCCESS; }
    return INVALID_ARGUMENT;
}

static u64 now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * 1000000000ULL + (u64)t.tv_nsec;
}

static int enter(gpu_t g) {
    if (!running) return UNINITIALIZED;
    if (!g || g < gpus || g >= gpus + get("count")) return INVALID_ARGUMENT;
    return get("lost") == g->index && g->calls++ >= get("lost_after") ? GPU_IS_LOST : SUCCESS;
}

#define CALL(name, ...) int name(gpu_t g, __VA_ARGS__) { int e = enter(g); if (e) return e;
#define END return SUCCESS; }
#define HIT(name) (get(name) == g->index)

int nvmlInitWithFlags(uint flags) {
    (void)flags;
    if (get("init_error")) return (int)get("init_error");
    for (int i = 0; i < MAX_GPUS; i++) gpus[i] = (struct gpu){i, 0};
    running = 1;
    return SUCCESS;
}
int nvmlShutdown(void) { running = 0; return SUCCESS; }
const char *nvmlErrorString(int error) { return error == GPU_IS_LOST ? "GPU is lost" : "stub error"; }
int nvmlSystemGetDriverVersion(char *text, uint size) { snprintf(text, size, "580.00.stub"); return SUCCESS; }
int nvmlSystemGetNVMLVersion(char *text, uint size) { snprintf(text, size, "13.580.00"); return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return SUCCESS; }
int nvmlDeviceGetCount_v2(uint *count) { *count = (uint)get("count"); return running ? SUCCESS : UNINITIALIZED; }
int nvmlDeviceGetHandleByIndex_v2(uint index, gpu_t *g) { *g = &gpus[index]; return enter(*g); }

CALL(nvmlDeviceGetName, char *text, uint size) snprintf(text, size, "Stub GPU"); END
CALL(nvmlDeviceGetUUID, char *text, uint size) snprintf(text, size, "GPU-00000000-0000-0000-0000-%012d", g->index); END
CALL(nvmlDeviceGetSerial, char *text, uint size) snprintf(text, size, "13200000%03d", g->index); END

struct pci { char legacy[16]; uint domain, bus, device, id, subsystem; char text[32]; };
CALL(nvmlDeviceGetPciInfo_v3, struct pci *p)
    memset(p, 0, sizeof *p);
    p->bus = 16 + (uint)g->index;
    snprintf(p->legacy, sizeof p->legacy, "0000:%02X:00.0", p->bus);
    snprintf(p->text, sizeof p->text, "00000000:%02X:00.0", p->bus);
END

CALL(nvmlDeviceGetPersistenceMode, uint *on) *on = !HIT("persistence_off"); END
CALL(nvmlDeviceGetMigMode, uint *now, uint *pending)
    if (get("mig") < 0) return NOT_SUPPORTED;
    *now = *pending = HIT("mig");
END
CALL(nvmlDeviceGetEccMode, uint *now, uint *pending) *now = *pending = 1; END
CALL(nvmlDeviceGetTotalEccErrors, int uncorrected, int aggregate, u64 *n)
    (void)aggregate;
    *n = uncorrected ? (HIT("ecc") ? 3 : 0) : (HIT("corrected") ? 70000 : 0);
END
CALL(nvmlDeviceGetRemappedRows, uint *corrected, uint *uncorrected, uint *pending, uint *failed)
    *corrected = 0;
    *uncorrected = *pending = HIT("remap_pending");
    *failed = HIT("remap_failed");
END

CALL(nvmlDeviceGetUtilizationRates, uint *shares) shares[0] = get("idle") ? 0 : 97; shares[1] = 20; END
CALL(nvmlDeviceGetPerformanceState, int *state) *state = get("idle") ? 8 : 0; END
CALL(nvmlDeviceGetClockInfo, int kind, uint *mhz)
    (void)kind;
    *mhz = HIT("throttle") ? 345 : get("idle") ? 210 : 1980;
END
CALL(nvmlDeviceGetMaxClockInfo, int kind, uint *mhz) (void)kind; *mhz = 1980; END
CALL(nvmlDeviceGetPowerUsage, uint *mw)
    if (HIT("deny")) return NO_PERMISSION;
    if (HIT("slow")) usleep((uint)get("slow_ms") * 1000);
    *mw = HIT("capped") ? 399000 : 640000;
END
CALL(nvmlDeviceGetEnforcedPowerLimit, uint *mw) *mw = HIT("capped") ? 400000 : 700000; END
CALL(nvmlDeviceGetPowerManagementDefaultLimit, uint *mw) *mw = 700000; END
CALL(nvmlDeviceGetTemperature, int sensor, uint *celsius) (void)sensor; *celsius = HIT("throttle") ? 91 : 52; END
CALL(nvmlDeviceGetTemperatureThreshold, int kind, uint *celsius) *celsius = kind == 1 ? 90 : 95; END
CALL(nvmlDeviceGetViolationStatus, int policy, u64 *times)
    times[0] = now_ns() / 1000;
    times[1] = policy == 1 && HIT("throttle") ? now_ns() / 5 * 3 : 0;
END
#ifndef OLD_DRIVER
struct temperature { uint version; int sensor, celsius; };
CALL(nvmlDeviceGetTemperatureV, struct temperature *t) t->celsius = HIT("throttle") ? 91 : 52; END
struct field { uint id, scope; long long at, took; int type, status; union { double d; u64 n; } value; };
CALL(nvmlDeviceGetFieldValues, int count, struct field *f)
    for (int i = 0; i < count; i++, f++) {
        int slowed = (f->id == 75 || f->id == 270) ? HIT("throttle") : f->id == 271 ? HIT("brake") : f->id == 74 && HIT("capped");
        f->type = 3;
        f->status = SUCCESS;
        f->value.n = slowed ? now_ns() / 5 * 3 : 0; /* slowed three fifths of the time */
    }
END
CALL(nvmlDeviceGetCurrentClocksEventReasons, u64 *bits) *bits = HIT("throttle") ? 0x48 : HIT("capped") ? 0x4 : 0; END
CALL(nvmlGpmQueryDeviceSupport, uint *support) support[1] = (uint)get("gpm"); END
struct metric { uint id; int status; double percent; const char *names[3]; };
struct metrics { uint version, count; void *first, *last; struct metric list[]; };
static int samples[64], taken = 0;
int nvmlGpmSampleAlloc(void **sample) { *sample = &samples[taken++ % 64]; return SUCCESS; }
int nvmlGpmSampleFree(void *sample) { (void)sample; taken--; return SUCCESS; }
CALL(nvmlGpmSampleGet, void *sample) *(int *)sample = g->index; END
int nvmlGpmMetricsGet(struct metrics *m) {
    if (m->version != 1 || !m->first || !m->last || m->first == m->last) return INVALID_ARGUMENT;
    for (uint i = 0; i < m->count; i++) {
        m->list[i].status = m->list[i].id == 10 ? NOT_SUPPORTED : SUCCESS;
        m->list[i].percent = m->list[i].id == 2 ? 93 : 41;
    }
    return SUCCESS;
}
#endif

CALL(nvmlDeviceGetCurrPcieLinkGeneration, uint *n) *n = get("idle") ? 1 : HIT("pcie_gen") ? 3 : 5; END
CALL(nvmlDeviceGetMaxPcieLinkGeneration, uint *n) *n = 5; END
CALL(nvmlDeviceGetCurrPcieLinkWidth, uint *n) *n = HIT("pcie_width") ? 8 : 16; END
CALL(nvmlDeviceGetMaxPcieLinkWidth, uint *n) *n = 16; END
CALL(nvmlDeviceGetPcieReplayCounter, uint *n) *n = 0; END
CALL(nvmlDeviceGetNvLinkState, uint link, uint *active)
    if (get("no_links")) return NOT_SUPPORTED;
    if (link >= MAX_LINKS) return INVALID_ARGUMENT;
    *active = !(HIT("link_down") && link == 3);
END
CALL(nvmlDeviceGetNvLinkErrorCounter, uint link, int counter, u64 *n)
    (void)counter;
    *n = HIT("link_errors") && link == 2 ? now_ns() / 1000000 : 0; /* one error a millisecond */
END

struct process { uint pid; u64 bytes; uint instance, compute; };
CALL(nvmlDeviceGetComputeRunningProcesses_v3, uint *count, struct process *p)
    if (!get("other_pid") || g->index) { *count = 0; return SUCCESS; }
    if (*count < 1 || !p) { *count = 1; return INSUFFICIENT_SIZE; }
    *count = 1;
    *p = (struct process){(uint)get("other_pid"), 1ULL << 30, ~0u, ~0u};
END
