/* SPDX-License-Identifier: Apache-2.0 */
/* Nothing is skipped but blanks before a number: what is not understood is neither that nor a list.
 */
#include "numbers.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

bool horon_number_parse(const char *text, int low, int high, int *value_out)
{
    char *end = NULL;
    const long value = strtol(text, &end, 10);
    if (end == text || *end || value < low || value > high)
        return false;
    *value_out = (int)value;
    return true;
}

/* @return a number below @p limit, behind which *at is then; -1: there is none */
static int parse_number(const char **at, int limit)
{
    const char *digits = *at + strspn(*at, " ");
    char *behind = NULL;
    const long number = isdigit((unsigned char)*digits) ? strtol(digits, &behind, 10) : -1;
    if (number < 0 || number >= limit)
        return -1;
    *at = behind;
    return (int)number;
}

int horon_numbers_parse(const char *text, size_t bytes, int limit, int *places)
{
    const char *at = text, *const end = text + bytes;
    int count = 0;
    memset(places, -1, (size_t)limit * sizeof *places);
    while (at < end) {
        const int first = parse_number(&at, limit);
        int last = first, step = 1;
        if (*at == '-') {
            at++;
            last = parse_number(&at, limit);
        }
        if (last > first && *at == ':') {
            at++;
            step = parse_number(&at, limit);
        }
        const bool more = at < end;
        if (first < 0 || last < first || step < 1 || (more && (*at != ',' || at + 1 == end)))
            return -1;
        for (int number = first; number <= last; number += step) {
            if (places[number] >= 0)
                return -1;
            places[number] = count++;
        }
        at += more;
    }
    return count;
}
