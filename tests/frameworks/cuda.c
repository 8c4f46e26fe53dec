/* A stand-in for libcuda.so.1, of which only the beginning is asked: does the driver start, and what does
 * it show? What it says is in the environment:
 *
 *     CUDA_STANDIN_VERSION       13000: it runs CUDA 13.0
 *     CUDA_STANDIN_INIT          what cuInit returns, 0 by default
 *     CUDA_STANDIN_DEVICES       compute capabilities: 9.0,9.0
 *     CUDA_STANDIN_HANG          if set, cuInit never returns
 *
 * CUDA_VISIBLE_DEVICES hides some, as the real one does: what is empty or below zero ends the list.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text == NULL ? otherwise : atoi(text);
}

/* How many parts a list with commas has, up to the first that is empty or begins with a minus. */
static int parts(const char *text) {
    int count = 0;
    while (text != NULL && *text != '\0' && *text != ',' && *text != '-') {
        count++;
        text = strchr(text, ',');
        text = text == NULL ? NULL : text + 1;
    }
    return count;
}

int cuDriverGetVersion(int *version) {
    *version = number("CUDA_STANDIN_VERSION", 13000);
    return 0;
}

int cuInit(unsigned flags) {
    (void)flags;
    while (getenv("CUDA_STANDIN_HANG") != NULL)
        pause();
    return number("CUDA_STANDIN_INIT", 0);
}

int cuDeviceGetCount(int *count) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    *count = parts(getenv("CUDA_STANDIN_DEVICES"));
    if (visible != NULL && parts(visible) < *count)
        *count = parts(visible);
    return 0;
}

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    const char *text = getenv("CUDA_STANDIN_DEVICES");
    int major = 0, minor = 0;
    while (device-- > 0 && text != NULL)
        text = strchr(text, ',') + 1;
    if (text == NULL || sscanf(text, "%d.%d", &major, &minor) != 2)
        return 1;
    *value = attribute == 75 ? major : minor;
    return 0;
}

int cuGetErrorName(int code, const char **name) {
    *name = code == 802 ? "CUDA_ERROR_SYSTEM_NOT_READY" : code == 803 ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" : "CUDA_ERROR_UNKNOWN";
    return 0;
}

int cuGetErrorString(int code, const char **text) {
    *text = code == 802 ? "system not yet initialized" : "unknown error";
    return 0;
}
