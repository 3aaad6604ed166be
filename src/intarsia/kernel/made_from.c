/* Which sources the library was made from: a library of others is not called. */
#include "kernel.h"

#ifndef MADE_FROM
#error "built by hatch_build.py, which gives the hash of the sources"
#endif

EXPORT const char *intarsia_made_from(void) { return MADE_FROM; }
