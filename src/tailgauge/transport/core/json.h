// Walks over JSON by its grammar. Every function takes the place where something begins and returns the place
// behind it, or NULL where it is not there or is not valid. The bytes must end with a line feed, which no value
// on one line contains: so nothing here needs to know where they end.
//
// Stricter than the parser in Python: what is refused here is read there.
#pragma once
#include <stdint.h>

typedef struct {
    const char *begin, *end;  // between the quotation marks
    int64_t characters;
    int has_escapes;
} JsonString;

const char *json_spaces(const char *at);
const char *json_string(const char *at, JsonString *found);
const char *json_value(const char *at);

// Whether a value, whose first byte is here, counts as nothing: null, false, "", [] or {}.
const char *json_nothing(const char *at);

// A whole number that is not negative, of at most 18 digits.
const char *json_count(const char *at, int64_t *found);
