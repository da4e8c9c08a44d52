/* SPDX-License-Identifier: Apache-2.0 */
/* A table of symbols, and the reason when the library is absent. */
#include "libev.h"

#include <assert.h>
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

static const struct {
    const char *name;
    size_t offset; /* of the pointer, in struct horon_libev */
} symbols[] = {
#define SYMBOL(name) {"ev_" #name, offsetof(struct horon_libev, name)},
    HORON_LIBEV_MAP(SYMBOL)
#undef SYMBOL
};

static horon_status_t find_symbols(struct horon_libev *libev, const char *file,
                                   struct horon_error *error)
{
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *symbol = dlsym(libev->image, symbols[i].name);
        if (!symbol)
            return horon_error_set(error, HORON_ERR_SYSTEM, "%s has no %s: it is not libev 4", file,
                                   symbols[i].name);
        memcpy((char *)libev + symbols[i].offset, &symbol, sizeof symbol);
    }
    return HORON_OK;
}

horon_status_t horon_libev_open(struct horon_libev *libev, const char *file,
                                struct horon_error *error)
{
    assert(libev->image == NULL);
    libev->image = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!libev->image) {
        const char *why = dlerror();
        return horon_error_set(error, HORON_ERR_SYSTEM,
                               "cannot open libev, the event loop (Debian's package libev4): %s",
                               why ? why : file);
    }
    horon_status_t status = find_symbols(libev, file, error);
    if (status != HORON_OK)
        horon_libev_close(libev);
    return status;
}

void horon_libev_close(struct horon_libev *libev)
{
    if (libev->image)
        dlclose(libev->image);
    libev->image = NULL;
}
