/* Decodes the rows of scan pages into column buffers. walk_python.py does the same in Python. Both must return
 * the same columns and the same faults (tests/protocol/test_walk.py).
 *
 * The library is loaded with ctypes and links only libc, so one build serves every Python. It uses no Python
 * objects and allocates nothing; ctypes releases the GIL during each call. Input is untrusted: every offset is
 * checked against the page before it is used.
 */
#include <stdint.h>
#include <string.h>

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

enum { T_NULL = 101, T_DATE = 11, T_TIMESTAMP = 33, T_WRAPPED = 27, T_OBJECT = 103, T_STRING = 9, T_STRING_ARRAY = 20, T_COLLECTION = 24 };
enum { F_SCHEMA = 2, F_RAW = 4, F_ONE = 8, F_TWO = 16, F_COMPACT = 32 };
enum { KIND_FIXED = 0, KIND_TIMESTAMP = 1, KIND_ENUM = 2, KIND_TEXT = 3, KIND_ARRAY = 4, KIND_DECIMAL = 5, KIND_UUID = 6, KIND_SQL_DATE = 7, KIND_NULLNESS = 8, KIND_LIST = 9 };
enum { SQL_DATE_BYTES = 15, SQL_DATE_TYPE = 1087757882 };
enum { BAD_BYTES = 1, BAD_TYPE = 2, BAD_NULL = 3, BAD_LENGTH = 4, BAD_SCHEMA = 5, BAD_TIME = 6 };
enum { MAX_HOLES = 512, MAX_DEPTH = 64 };
/* For milliseconds since 1970 in this range, nanoseconds fit into 64 bits. */
static const int64_t MIN_MILLIS = -9223372036854, MAX_MILLIS = 9223372036853;

typedef struct { int32_t leaf, first_type, num_types, first_child, num_children; } node_t; /* leaf < 0: an object, or the cells of an SQL row if it has no types */
typedef struct { int32_t field_id, node; } child_t;
typedef struct { int32_t type_id, schema_id, first_field, num_fields; } schema_t;
typedef struct { int32_t code, kind, item_bytes, length, row_bytes, has_fill; const uint8_t *fill; } leaf_t;
typedef struct { int32_t code, leaf; int64_t row, offset; } fault_t;

typedef struct {
    int32_t num_leaves, num_schemas, key_node, value_node;
    const node_t *nodes;
    const int32_t *types;
    const child_t *children;
    const leaf_t *leaves;
    const schema_t *schemas;
    const int32_t *schema_fields;
    /* Scratch space, owned by the plan: the children's positions in the footer for the most recent schema. */
    int32_t *cached_schema; /* per node; set only if cached_valid, the number of the schema's fields plus 1, is not 0 */
    int32_t *cached_type;
    int32_t *cached_valid;
    int32_t *cached_position; /* per child: index of its footer entry, or -1 */
    /* The template: an earlier row. A row that has the same bytes outside the holes is decoded without a walk. */
    int32_t template_bytes, template_capacity, num_ranges;
    uint8_t *template_row;
    int32_t *ranges;       /* (start, length) pairs, at most MAX_HOLES + 1 */
    int32_t *leaf_offsets; /* offset of each leaf's payload in the template */
} plan_t;

typedef struct {
    plan_t *plan;
    const uint8_t *bytes, *base;
    int64_t row, first_row, first_span, row_start;
    void **out;
    fault_t *fault;
    int32_t num_holes, plain; /* plain: whether the row may become the template */
    int32_t hole_start[MAX_HOLES], hole_bytes[MAX_HOLES];
    int32_t leaf_at[MAX_HOLES];
} walk_t;

static int32_t i32(const uint8_t *p) { int32_t v; memcpy(&v, p, 4); return v; }

static int64_t fail(walk_t *w, int32_t code, int32_t leaf, int64_t offset) {
    w->fault->code = code;
    w->fault->leaf = leaf;
    w->fault->row = w->row;
    w->fault->offset = offset;
    return -1;
}

static void hole(walk_t *w, int64_t at, int64_t size) {
    int64_t start = at - w->row_start;
    if (w->num_holes >= MAX_HOLES || start < 0 || start + size > w->plan->template_capacity) {
        w->plain = 0;
        return;
    }
    w->hole_start[w->num_holes] = (int32_t)start;
    w->hole_bytes[w->num_holes++] = (int32_t)size;
}

/* Converts milliseconds and nanoseconds to nanoseconds. Returns 0 if they do not fit into 64 bits. */
static int copy_timestamp(uint8_t *out, const uint8_t *p) {
    int64_t millis;
    int32_t nanos = i32(p + 8);
    memcpy(&millis, p, 8);
    if ((uint64_t)millis - (uint64_t)MIN_MILLIS > (uint64_t)(MAX_MILLIS - MIN_MILLIS) || (uint32_t)nanos > 999999) return 0;
    millis = millis * 1000000 + nanos;
    memcpy(out, &millis, 8);
    return 1;
}

/* Copies a payload into its column. Returns 0 if the value does not fit the column. */
static int put_fixed(const leaf_t *leaf, uint8_t *column, int64_t row, const uint8_t *payload) {
    uint8_t *out = column + row * leaf->row_bytes;
    if (leaf->kind == KIND_TIMESTAMP) return copy_timestamp(out, payload);
    switch (leaf->row_bytes) {
        case 1: *out = leaf->kind == KIND_NULLNESS ? 0 : *payload; break;
        case 2: memcpy(out, payload, 2); break;
        case 4: memcpy(out, payload, 4); break;
        case 8: memcpy(out, payload, 8); break;
        default: memcpy(out, payload, (size_t)leaf->row_bytes);
    }
    return 1;
}

static void put_span(walk_t *w, int32_t index, int64_t offset, int64_t size) {
    int64_t *span = (int64_t *)w->out[index] + 2 * (w->first_span + w->row);
    span[0] = offset < 0 ? offset : (int64_t)((uintptr_t)w->bytes - (uintptr_t)w->base) + offset;
    span[1] = size;
    w->plain = 0;
}

static int64_t put_null(walk_t *w, int32_t index, int64_t at) {
    const leaf_t *leaf = &w->plan->leaves[index];
    w->plain = 0;
    if (!leaf->has_fill) return fail(w, BAD_NULL, index, at);
    if ((leaf->kind >= KIND_TEXT && leaf->kind <= KIND_UUID) || leaf->kind == KIND_LIST) put_span(w, index, -1, 0);
    else memcpy((uint8_t *)w->out[index] + (w->first_row + w->row) * leaf->row_bytes, leaf->fill, (size_t)leaf->row_bytes);
    return 0;
}

static int64_t put_nulls(walk_t *w, int32_t index, int64_t at) {
    const node_t *node = &w->plan->nodes[index];
    int32_t i;
    if (node->leaf >= 0) return put_null(w, node->leaf, at);
    for (i = 0; i < node->num_children; i++)
        if (put_nulls(w, w->plan->children[node->first_child + i].node, at) < 0) return -1;
    return 0;
}

/* Returns the size in bytes of a payload that starts with its count (string, array), or -1. */
static int64_t counted(walk_t *w, int32_t index, int64_t at, int64_t limit, int64_t item_bytes) {
    int64_t count;
    if (at + 4 > limit) return fail(w, BAD_BYTES, index, at);
    count = i32(w->bytes + at);
    if (count < 0 || count * item_bytes > limit - at - 4) return fail(w, BAD_BYTES, index, at);
    return count * item_bytes;
}

static int64_t skip(const uint8_t *bytes, int64_t at, int64_t end, int depth);

/* Walks one leaf whose type code is at `at`. Returns the offset after the leaf, or -1. */
static int64_t walk_leaf(walk_t *w, int32_t index, int64_t at, int64_t limit) {
    const leaf_t *leaf = &w->plan->leaves[index];
    uint8_t *column = (uint8_t *)w->out[index];
    uint8_t instant[12] = {0};
    int64_t payload = at + 1, size;
    int is_date;
    if (at >= limit) return fail(w, BAD_BYTES, index, at);
    if (w->bytes[at] == T_NULL) return put_null(w, index, at) < 0 ? -1 : payload;
    if (leaf->kind == KIND_NULLNESS) { /* the value leaf checks the rest; no hole: the template matches equal type codes only */
        column[w->first_row + w->row] = 0;
        if (index < MAX_HOLES) w->leaf_at[index] = (int32_t)(at - w->row_start);
        return payload;
    }
    is_date = leaf->code == T_TIMESTAMP && w->bytes[at] == T_DATE; /* java.util.Date has no nanoseconds */
    if (w->bytes[at] != (uint8_t)leaf->code && !is_date) return fail(w, BAD_TYPE, index, at);
    switch (leaf->kind) {
    case KIND_FIXED:
        size = leaf->row_bytes;
        if (leaf->length >= 0) { /* an array of fixed length */
            size = counted(w, index, payload, limit, leaf->item_bytes);
            if (size < 0) return -1;
            payload += 4;
            if (size != leaf->row_bytes) return fail(w, BAD_LENGTH, index, at);
        }
        if (payload + size > limit) return fail(w, BAD_BYTES, index, at);
        put_fixed(leaf, column, w->first_row + w->row, w->bytes + payload);
        break;
    case KIND_TIMESTAMP:
        size = is_date ? 8 : 12;
        if (payload + size > limit) return fail(w, BAD_BYTES, index, at);
        if (is_date) {
            w->plain = 0;
            memcpy(instant, w->bytes + payload, 8);
            if (!put_fixed(leaf, column, w->first_row + w->row, instant)) return fail(w, BAD_TIME, index, at);
            return payload + size;
        }
        if (!put_fixed(leaf, column, w->first_row + w->row, w->bytes + payload)) return fail(w, BAD_TIME, index, at);
        break;
    case KIND_ENUM: /* type id (if 0, the class name follows), ordinal */
        w->plain = 0;
        if (payload + 4 > limit) return fail(w, BAD_BYTES, index, at);
        if (i32(w->bytes + payload) == 0) {
            if (payload + 5 > limit || w->bytes[payload + 4] != 9) return fail(w, BAD_BYTES, index, at);
            size = counted(w, index, payload + 5, limit, 1);
            if (size < 0) return -1;
            payload += 5 + size;
        }
        payload += 4;
        size = 4;
        if (payload + 4 > limit) return fail(w, BAD_BYTES, index, at);
        put_fixed(leaf, column, w->first_row + w->row, w->bytes + payload);
        return payload + 4;
    case KIND_TEXT:
    case KIND_ARRAY:
        size = counted(w, index, payload, limit, leaf->item_bytes);
        if (size < 0) return -1;
        put_span(w, index, payload + 4, size);
        return payload + 4 + size;
    case KIND_DECIMAL:
        size = counted(w, index, payload + 4, limit, 1);
        if (size < 0) return -1;
        put_span(w, index, payload, 8 + size);
        return payload + 8 + size;
    case KIND_SQL_DATE: /* length, 'f', class id, checksum, milliseconds */
        size = counted(w, index, payload, limit, 1);
        if (size < 0) return -1;
        if (size != SQL_DATE_BYTES || w->bytes[payload + 4] != 'f' || i32(w->bytes + payload + 5) != SQL_DATE_TYPE)
            return fail(w, BAD_TYPE, index, at);
        payload += 4 + SQL_DATE_BYTES - 8;
        size = 8;
        put_fixed(leaf, column, w->first_row + w->row, w->bytes + payload);
        break;
    case KIND_LIST: /* the span includes the type code, because Python needs it */
        size = skip(w->bytes, at, limit, 0) - at;
        if (size < 0) return fail(w, BAD_BYTES, index, at);
        put_span(w, index, at, size);
        return at + size;
    default: /* KIND_UUID */
        if (payload + 16 > limit) return fail(w, BAD_BYTES, index, at);
        put_span(w, index, payload, 16);
        return payload + 16;
    }
    hole(w, payload, size);
    if (index < MAX_HOLES) w->leaf_at[index] = (int32_t)(payload - w->row_start);
    return payload + size;
}

static int64_t walk_node(walk_t *w, int32_t index, int64_t at, int64_t limit, int depth);

/* Walks the cells of a row, one after another. Consecutive columns with the same id belong to the same cell.
 * Returns the offset after the cells, or -1. */
static int64_t walk_cells(walk_t *w, const node_t *node, int64_t at, int64_t limit) {
    int64_t cell = at;
    int32_t i;
    for (i = 0; i < node->num_children; i++) {
        const child_t *child = &w->plan->children[node->first_child + i];
        int32_t leaf = w->plan->nodes[child->node].leaf;
        if (leaf < 0) return fail(w, BAD_TYPE, -1, at);
        if (i && child->field_id == child[-1].field_id) {
            if (walk_leaf(w, leaf, cell, limit) < 0) return -1;
            continue;
        }
        cell = at;
        if ((at = walk_leaf(w, leaf, at, limit)) < 0) return -1;
    }
    return at;
}

/* Finds each child's position in the footer for this object's schema, and caches it. Returns the number of fields
 * that a compact footer must list, 0 if the footer is not compact, -1 if the schema is unknown. */
static int find_children(walk_t *w, int32_t index, const uint8_t *footer, int64_t footer_bytes, int flags, int32_t type, int32_t schema) {
    plan_t *plan = w->plan;
    const node_t *node = &plan->nodes[index];
    int width = flags & F_ONE ? 1 : flags & F_TWO ? 2 : 4;
    int64_t num = 0, i, j;
    const int32_t *ids = 0;
    if (flags & F_COMPACT) {
        if (plan->cached_valid[index] && plan->cached_schema[index] == schema && plan->cached_type[index] == type)
            return plan->cached_valid[index] - 1;
        for (i = 0; i < plan->num_schemas && !ids; i++)
            if (plan->schemas[i].type_id == type && plan->schemas[i].schema_id == schema) {
                ids = plan->schema_fields + plan->schemas[i].first_field;
                num = plan->schemas[i].num_fields;
            }
        if (!ids) return -1;
    } else num = footer_bytes / (4 + width);
    for (j = 0; j < node->num_children; j++) {
        int32_t wanted = plan->children[node->first_child + j].field_id, position = -1;
        for (i = 0; i < num && position < 0; i++)
            if ((ids ? ids[i] : i32(footer + i * (4 + width))) == wanted)
                position = (int32_t)i;
        plan->cached_position[node->first_child + j] = position;
    }
    plan->cached_schema[index] = schema;
    plan->cached_type[index] = type;
    plan->cached_valid[index] = flags & F_COMPACT ? (int32_t)num + 1 : 0;
    return flags & F_COMPACT ? (int)num : 0;
}

/* Walks the fields of an object whose header is at `at`. Returns the object's length, or -1. */
static int64_t walk_object(walk_t *w, int32_t index, int64_t at, int64_t limit, int depth) {
    const node_t *node = &w->plan->nodes[index];
    const uint8_t *p = w->bytes + at;
    int32_t flags, length, footer, type, i;
    int64_t footer_end;
    int width, listed;
    if (depth > MAX_DEPTH || at + 24 > limit || p[0] != T_OBJECT) return fail(w, BAD_BYTES, -1, at);
    flags = p[2] | p[3] << 8;
    length = i32(p + 12);
    footer = i32(p + 20);
    if (length < 24 || length > limit - at) return fail(w, BAD_BYTES, -1, at);
    footer_end = length - (flags & F_RAW ? 4 : 0);
    if (flags & F_SCHEMA && (footer < 24 || footer > footer_end)) return fail(w, BAD_BYTES, -1, at);
    type = i32(p + 4);
    for (i = 0; i < node->num_types && w->plan->types[node->first_type + i] != type; i++);
    if (i == node->num_types) return fail(w, BAD_TYPE, -1, at);
    hole(w, at + 8, 4); /* the hash differs from row to row */
    if (!node->num_children) return length; /* no field is read, so the schema is not needed */
    if (!(flags & F_SCHEMA)) return put_nulls(w, index, at) < 0 ? -1 : length;
    width = flags & F_ONE ? 1 : flags & F_TWO ? 2 : 4;
    listed = find_children(w, index, p + footer, footer_end - footer, flags, type, i32(p + 16));
    if (listed < 0) return fail(w, BAD_SCHEMA, -1, at);
    if ((int64_t)listed * width > footer_end - footer) return fail(w, BAD_BYTES, -1, at);
    for (i = 0; i < node->num_children; i++) {
        int32_t child = w->plan->children[node->first_child + i].node;
        int32_t position = w->plan->cached_position[node->first_child + i];
        int64_t offset;
        if (position < 0) {
            if (put_nulls(w, child, at) < 0) return -1;
            continue;
        }
        position = flags & F_COMPACT ? position * width : position * (4 + width) + 4;
        if (footer + position + width > footer_end) return fail(w, BAD_BYTES, -1, at);
        if (width == 1) offset = p[footer + position];
        else if (width == 2) offset = p[footer + position] | p[footer + position + 1] << 8;
        else offset = i32(p + footer + position);
        if (offset < 24 || offset >= footer) return fail(w, BAD_BYTES, -1, at);
        if (walk_node(w, child, at + offset, at + footer, depth + 1) < 0) return -1;
    }
    return length;
}

static int64_t walk_node(walk_t *w, int32_t index, int64_t at, int64_t limit, int depth) {
    const node_t *node = &w->plan->nodes[index];
    int64_t size, inner;
    if (node->leaf >= 0) return walk_leaf(w, node->leaf, at, limit);
    if (!node->num_types) return walk_cells(w, node, at, limit);
    if (at >= limit) return fail(w, BAD_BYTES, -1, at);
    if (w->bytes[at] == T_NULL) return put_nulls(w, index, at) < 0 ? -1 : at + 1;
    if (w->bytes[at] == T_OBJECT) {
        size = walk_object(w, index, at, limit, depth);
        return size < 0 ? -1 : at + size;
    }
    if (w->bytes[at] != T_WRAPPED) return fail(w, BAD_TYPE, -1, at);
    size = counted(w, -1, at + 1, limit - 4, 1);
    if (size < 0) return -1;
    inner = i32(w->bytes + at + 5 + size);
    if (inner < 0 || inner >= size) return fail(w, BAD_BYTES, -1, at);
    if (walk_object(w, index, at + 5 + inner, at + 5 + size, depth) < 0) return -1;
    return at + 9 + size;
}

/* Makes the row that was just walked the template: sorts its holes and stores the ranges between them. */
static void set_template(walk_t *w, int64_t row_end) {
    plan_t *plan = w->plan;
    int64_t size = row_end - w->row_start, from = 0;
    int32_t i, j;
    if (!w->plain || size > plan->template_capacity || plan->num_leaves > MAX_HOLES) return;
    for (i = 1; i < w->num_holes; i++) {
        int32_t start = w->hole_start[i], bytes = w->hole_bytes[i];
        for (j = i; j > 0 && w->hole_start[j - 1] > start; j--) {
            w->hole_start[j] = w->hole_start[j - 1];
            w->hole_bytes[j] = w->hole_bytes[j - 1];
        }
        w->hole_start[j] = start;
        w->hole_bytes[j] = bytes;
    }
    plan->num_ranges = 0;
    for (i = 0; i <= w->num_holes; i++) {
        int64_t until = i < w->num_holes ? w->hole_start[i] : size;
        if (until > from) {
            plan->ranges[2 * plan->num_ranges] = (int32_t)from;
            plan->ranges[2 * plan->num_ranges++ + 1] = (int32_t)(until - from);
        }
        if (i < w->num_holes && w->hole_start[i] + w->hole_bytes[i] > from) from = w->hole_start[i] + w->hole_bytes[i];
    }
    memcpy(plan->template_row, w->bytes + w->row_start, (size_t)size);
    memcpy(plan->leaf_offsets, w->leaf_at, sizeof(int32_t) * (size_t)plan->num_leaves);
    plan->template_bytes = (int32_t)size;
}

static int matches_template(const plan_t *plan, const uint8_t *row, int64_t left) {
    int32_t i;
    if (!plan->template_bytes || left < plan->template_bytes) return 0;
    for (i = 0; i < plan->num_ranges; i++)
        if (memcmp(row + plan->ranges[2 * i], plan->template_row + plan->ranges[2 * i], (size_t)plan->ranges[2 * i + 1]))
            return 0;
    return 1;
}

/* A page: the address, size in bytes and number of its rows. */
typedef struct { const uint8_t *bytes; int64_t num_bytes, num_rows; } page_t;

/* Decodes the first rows of a page. Returns the offset after them, or -1. */
static int64_t decode_rows(walk_t *w, const page_t *page, int64_t num_rows) {
    plan_t *plan = w->plan;
    int64_t at = 0, key_end;
    int32_t i;
    w->bytes = page->bytes;
    for (w->row = 0; w->row < num_rows; w->row++) {
        if (matches_template(plan, w->bytes + at, page->num_bytes - at)) {
            for (i = 0; i < plan->num_leaves; i++)
                if (!put_fixed(&plan->leaves[i], (uint8_t *)w->out[i], w->first_row + w->row, w->bytes + at + plan->leaf_offsets[i]))
                    return fail(w, BAD_TIME, i, at + plan->leaf_offsets[i] - 1);
            at += plan->template_bytes;
            continue;
        }
        w->row_start = at; w->num_holes = 0; w->plain = 1;
        key_end = walk_node(w, plan->key_node, at, page->num_bytes, 0);
        if (key_end < 0) return -1;
        at = walk_node(w, plan->value_node, key_end, page->num_bytes, 0);
        if (at < 0) return -1;
        set_template(w, at);
    }
    w->row_start = at;
    return num_rows < page->num_rows || at == page->num_bytes ? at : fail(w, BAD_BYTES, -1, at);
}

/* Decodes rows of pages until `room` rows are written or the pages end. `out` has one buffer per leaf. Columns of
 * fixed size are written from `first_row` on. The others get (offset from `base`, size in bytes) pairs from index 0
 * on, with offset -1 for null. Decoded rows are removed from `pages`: the entry of a page that was read completely
 * becomes empty; the entry of a page that was read in part keeps its other rows. Returns the number of rows. After
 * an error, returns -1, sets `fault` and leaves `pages` unchanged. */
EXPORT int64_t itm_decode(plan_t *plan, page_t *pages, int64_t num_pages, int64_t room, int64_t first_row, const uint8_t *base, void **out, fault_t *fault) {
    walk_t w;
    int64_t i, done = 0, at = 0, rows;
    w.plan = plan; w.out = out; w.fault = fault; w.base = base;
    for (i = 0; i < num_pages && done < room; i++) {
        rows = pages[i].num_rows < room - done ? pages[i].num_rows : room - done;
        w.first_row = first_row + done;
        w.first_span = done;
        if ((at = decode_rows(&w, &pages[i], rows)) < 0) return -1;
        done += rows;
    }
    if (!i) return 0;
    rows = done;
    for (num_pages = i, i = 0; i < num_pages; i++) {
        if (pages[i].num_rows <= rows) {
            rows -= pages[i].num_rows;
            pages[i].num_rows = pages[i].num_bytes = 0;
        } else {
            pages[i].num_rows -= rows;
            pages[i].bytes += at;
            pages[i].num_bytes -= at;
        }
    }
    return done;
}

/* Copies the bytes at (address, size) pairs, one after another; `fill` for pairs with address -1. */
EXPORT void itm_join(const int64_t *spans, int64_t num_spans, const uint8_t *fill, int64_t fill_bytes, uint8_t *out) {
    int64_t i;
    for (i = 0; i < num_spans; i++) {
        const int is_null = spans[2 * i] < 0;
        const int64_t size = is_null ? fill_bytes : spans[2 * i + 1];
        memcpy(out, is_null ? fill : (const uint8_t *)(uintptr_t)spans[2 * i], (size_t)size);
        out += size;
    }
}

/* Finds the texts in arrays and collections of strings. `lists` has an (address, size) pair for each list. `texts`
 * gets such a pair for each text, and `lengths` the number of texts of each list (0 for a list with address -1).
 * Returns the number of texts, or -1 if a list contains anything else, such as a null. `texts` must have room for one
 * text per five bytes of the lists. */
EXPORT int64_t itm_texts(const int64_t *lists, int64_t num_lists, int64_t *texts, int64_t *lengths) {
    int64_t i, j, found = 0;
    for (i = 0; i < num_lists; i++) {
        const uint8_t *list = (const uint8_t *)(uintptr_t)lists[2 * i];
        int64_t size = lists[2 * i + 1], at, text;
        lengths[i] = 0;
        if (lists[2 * i] < 0) continue;
        if (size < 5 || (list[0] != T_STRING_ARRAY && list[0] != T_COLLECTION) || i32(list + 1) < 0) return -1;
        at = list[0] == T_COLLECTION ? 6 : 5;
        lengths[i] = i32(list + 1);
        for (j = 0; j < lengths[i]; j++) {
            if (size - at < 5 || list[at] != T_STRING) return -1;
            text = i32(list + at + 1);
            at += 5;
            if (text < 0 || text > size - at) return -1;
            texts[2 * found] = (int64_t)(uintptr_t)(list + at);
            texts[2 * found++ + 1] = text;
            at += text;
        }
        if (at != size) return -1;
    }
    return found;
}

/* Returns the offset after a value of any type, or -1. */
static int64_t skip(const uint8_t *bytes, int64_t at, int64_t end, int depth) {
    static const uint8_t scalar[9] = {0, 1, 2, 4, 8, 4, 8, 2, 1};
    static const uint8_t item[8] = {1, 2, 4, 8, 4, 8, 2, 1};
    int64_t count, i;
    int code;
    if (depth > MAX_DEPTH || at >= end) return -1;
    code = bytes[at++];
    if (code >= 1 && code <= 8) at += scalar[code];
    else if (code == T_NULL) return at;
    else if (code == 10) at += 16;
    else if (code == 102) at += 4; /* a reference to an earlier value */
    else if (code == 11 || code == 36) at += 8;
    else if (code == 33) at += 12;
    else if (code == T_OBJECT) {
        if (at + 23 > end || i32(bytes + at + 11) < 24) return -1;
        at += i32(bytes + at + 11) - 1;
    } else if (code == 28 || code == 38 || code == 23 || code == 29 || code == 32) {
        if (at + 4 > end) return -1;
        at += 4;
        if (i32(bytes + at - 4) == 0 && (at = skip(bytes, at, end, depth + 1)) < 0) return -1;
        if (code == 32) return at;
        if (at + 4 > end) return -1;
        count = code == 28 || code == 38 ? 0 : i32(bytes + at);
        at += 4;
        if (count < 0) return -1;
        for (i = 0; i < count; i++)
            if ((at = skip(bytes, at, end, depth + 1)) < 0) return -1;
    } else {
        if (code == 30) at += 4;
        if (at + 4 > end || at + 4 < 0) return -1;
        count = i32(bytes + at);
        at += 4;
        if (count < 0) return -1;
        if (code == 9 || code == 30) at += count;
        else if (code >= 12 && code <= 19) at += count * item[code - 12];
        else if (code == 254) at += count;
        else if (code == T_WRAPPED) at += count + 4;
        else if (code == 24 || code == 25 || code == 20 || code == 21 || code == 22 || code == 31 || code == 34 || code == 37) {
            if (code == 24 || code == 25) at++;
            if (code == 25) count *= 2;
            for (i = 0; i < count; i++)
                if ((at = skip(bytes, at, end, depth + 1)) < 0) return -1;
        } else return -1;
    }
    return at <= end ? at : -1;
}

/* Finds where each row starts, and hashes each encoded key (FNV-1a, 64 bits). A row is a key and `num_values` values
 * of any type. `row_starts` gets num_rows + 1 offsets. Returns 0, or -1 after an error. */
EXPORT int itm_index(const uint8_t *bytes, int64_t num_bytes, int64_t num_rows, int64_t num_values, int64_t *row_starts, uint64_t *key_hashes) {
    int64_t at = 0, row, key_end, i;
    for (row = 0; row < num_rows; row++) {
        uint64_t hash = 0xcbf29ce484222325u;
        row_starts[row] = at;
        if ((key_end = skip(bytes, at, num_bytes, 0)) < 0) return -1;
        for (; at < key_end; at++) hash = (hash ^ bytes[at]) * 0x100000001b3u;
        key_hashes[row] = hash;
        for (i = 0; i < num_values; i++)
            if ((at = skip(bytes, at, num_bytes, 0)) < 0) return -1;
    }
    row_starts[num_rows] = at;
    return at == num_bytes ? 0 : -1;
}

/* Finds where each value starts, for values of any type. `starts` gets num_values + 1 offsets. Returns 0, or -1. */
EXPORT int itm_starts(const uint8_t *bytes, int64_t num_bytes, int64_t num_values, int64_t *starts) {
    int64_t i;
    starts[0] = 0;
    for (i = 0; i < num_values; i++)
        if ((starts[i + 1] = skip(bytes, starts[i], num_bytes, 0)) < 0) return -1;
    return 0;
}

/* Copies `piece_bytes` bytes from each offset, one piece after another. itm_starts finds the offsets. */
EXPORT void itm_gather(const uint8_t *bytes, const int64_t *offsets, int64_t num_offsets, int64_t piece_bytes, uint8_t *out) {
    int64_t i;
    if (piece_bytes == 4) for (i = 0; i < num_offsets; i++) memcpy(out + 4 * i, bytes + offsets[i], 4);
    else if (piece_bytes == 8) for (i = 0; i < num_offsets; i++) memcpy(out + 8 * i, bytes + offsets[i], 8);
    else for (i = 0; i < num_offsets; i++) memcpy(out + piece_bytes * i, bytes + offsets[i], (size_t)piece_bytes);
}

/* Copies rows of `row_bytes` bytes: row i becomes row places[i] of `out`. */
EXPORT void itm_scatter(const uint8_t *rows, const int64_t *places, int64_t num_rows, int64_t row_bytes, uint8_t *out) {
    int64_t i;
    if (row_bytes == 4) for (i = 0; i < num_rows; i++) memcpy(out + 4 * places[i], rows + 4 * i, 4);
    else if (row_bytes == 8) for (i = 0; i < num_rows; i++) memcpy(out + 8 * places[i], rows + 8 * i, 8);
    else for (i = 0; i < num_rows; i++) memcpy(out + row_bytes * places[i], rows + row_bytes * i, (size_t)row_bytes);
}

/* Finds the size of the largest row of each page, for rows of any types. Returns 0, or -1 after an error. */
EXPORT int itm_measure(const page_t *pages, int64_t num_pages, int64_t *largest) {
    int64_t i, at, row, start;
    for (i = 0; i < num_pages; i++) {
        largest[i] = at = 0;
        for (row = 0; row < pages[i].num_rows; row++) {
            start = at;
            if ((at = skip(pages[i].bytes, at, pages[i].num_bytes, 0)) < 0) return -1;
            if ((at = skip(pages[i].bytes, at, pages[i].num_bytes, 0)) < 0) return -1;
            if (at - start > largest[i]) largest[i] = at - start;
        }
        if (at != pages[i].num_bytes) return -1;
    }
    return 0;
}

/* A sweep: partitions of one page each, requested one after another on one connection. Answers come in any order.
 * They stay in the receive buffer until they are next in order. protocol/sweep.py explains more. */
typedef struct { page_t page; int64_t cursor; int32_t has_more, is_here; } slot_t;

typedef struct {
    uint8_t *buffer;
    int64_t capacity, parsed, end; /* received up to `end`, parsed into answers up to `parsed` */
    int64_t first_id;              /* request id of the first partition */
    int64_t num_partitions, num_taken, num_asked, num_here;
    int64_t max_asked, max_bytes;  /* limits for pages that are requested and not yet taken */
    const int64_t *rows, *bytes;   /* expected of each partition */
    slot_t *slots;                 /* room for max_asked of them */
    page_t *run;                   /* room for max_asked of them */
    int64_t run_rows, num_changed; /* in `run`: number of rows, and of pages with an unexpected size */
} sweep_t;

enum { SWEEP_RUN = 1, SWEEP_MORE = 0, SWEEP_ODD = -1, SWEEP_GROWN = -2 };
enum { FLAG_TOPOLOGY = 2, ANSWER_HEAD = 14, PAGE_HEAD = 12 };

/* Puts the next answer into its slot. Returns 1, 0 if the answer is incomplete, or -1 if it is not a page. */
static int take_answer(sweep_t *s) {
    const uint8_t *frame = s->buffer + s->parsed;
    int64_t left = s->end - s->parsed, id, index, head = ANSWER_HEAD, length;
    int16_t flags;
    slot_t *slot;
    if (left < 4) return 0;
    length = i32(frame);
    if (length <= 0) return -1;
    if (left < 4 + length) return 0;
    if (length < ANSWER_HEAD - 4 + PAGE_HEAD + 1) return -1;
    memcpy(&id, frame + 4, 8);
    memcpy(&flags, frame + 12, 2);
    if (flags == FLAG_TOPOLOGY && length >= ANSWER_HEAD - 4 + 12 + PAGE_HEAD + 1) head += 12;
    else if (flags) return -1;
    index = id - s->first_id;
    if (index < s->num_taken || index >= s->num_asked) return -1;
    slot = &s->slots[index % s->max_asked];
    if (slot->is_here) return -1;
    memcpy(&slot->cursor, frame + head, 8);
    slot->page.num_rows = i32(frame + head + 8);
    slot->page.bytes = frame + head + PAGE_HEAD;
    slot->page.num_bytes = 4 + length - head - PAGE_HEAD - 1;
    if (slot->page.num_rows < 0 || 2 * slot->page.num_rows > slot->page.num_bytes) return -1;
    if (!slot->page.num_rows && slot->page.num_bytes) return -1;
    slot->has_more = frame[3 + length];
    slot->is_here = 1;
    s->num_here++;
    s->parsed += 4 + length;
    return 1;
}

/* Processes the received bytes. Returns
 * SWEEP_RUN: `run` holds the next pages in order; their number has been added to `num_taken`;
 * SWEEP_MORE: more bytes are needed;
 * SWEEP_ODD: the answer at `parsed` is not a page;
 * SWEEP_GROWN: the next partition has more than one page. */
EXPORT int itm_sweep_take(sweep_t *s) {
    int64_t first = s->num_taken;
    int taken;
    s->run_rows = s->num_changed = 0;
    while ((taken = take_answer(s)) > 0) {}
    for (; s->num_taken < s->num_asked; s->num_taken++) {
        slot_t *slot = &s->slots[s->num_taken % s->max_asked];
        if (!slot->is_here || slot->has_more) break;
        slot->is_here = 0;
        s->num_here--;
        s->run[s->num_taken - first] = slot->page;
        s->run_rows += slot->page.num_rows;
        s->num_changed += slot->page.num_rows != s->rows[s->num_taken] || slot->page.num_bytes > s->bytes[s->num_taken];
    }
    if (s->num_taken > first) return SWEEP_RUN;
    if (taken < 0) return SWEEP_ODD;
    return s->num_taken < s->num_asked && s->slots[s->num_taken % s->max_asked].is_here ? SWEEP_GROWN : SWEEP_MORE;
}

/* Returns the number of partitions that may be requested now, and counts them as requested. */
EXPORT int64_t itm_sweep_ask(sweep_t *s) {
    int64_t i, bytes = 0, first = s->num_asked;
    for (i = s->num_taken; i < s->num_asked; i++) bytes += s->bytes[i];
    while (s->num_asked < s->num_partitions && s->num_asked - s->num_taken < s->max_asked
           && (s->num_asked == s->num_taken || bytes + s->bytes[s->num_asked] <= s->max_bytes))
        bytes += s->bytes[s->num_asked++];
    return s->num_asked - first;
}

/* Makes room after `end` for `wanted` bytes, if necessary by moving bytes that are still needed to the front. This
 * overwrites pages that were taken before. Returns the free bytes after `end`, or -1 if the buffer is too small. */
EXPORT int64_t itm_sweep_room(sweep_t *s, int64_t wanted) {
    int64_t i, lowest = s->parsed;
    for (i = s->num_taken; i < s->num_asked; i++) {
        const slot_t *slot = &s->slots[i % s->max_asked];
        if (slot->is_here && slot->page.bytes - s->buffer < lowest) lowest = slot->page.bytes - s->buffer;
    }
    if (lowest == s->end || s->capacity - s->end < wanted) {
        memmove(s->buffer, s->buffer + lowest, (size_t)(s->end - lowest));
        for (i = s->num_taken; i < s->num_asked; i++) {
            slot_t *slot = &s->slots[i % s->max_asked];
            if (slot->is_here) slot->page.bytes -= lowest; /* the pointers of other slots are not valid */
        }
        s->parsed -= lowest;
        s->end -= lowest;
    }
    return s->capacity - s->end >= wanted ? s->capacity - s->end : -1;
}

/* Hashes a range of each row as java.util.Arrays.hashCode does, and stores the hash in the row. Ignite keeps this
 * hash in the header of a binary object. */
EXPORT void itm_hash_rows(uint8_t *rows, int64_t num_rows, int64_t row_bytes, int64_t from, int64_t size, int64_t to) {
    int64_t row, i;
    for (row = 0; row < num_rows; row++, rows += row_bytes) {
        uint32_t hash = 1;
        for (i = 0; i < size; i++) hash = 31u * hash + (uint32_t)(int32_t)(int8_t)rows[from + i];
        memcpy(rows + to, &hash, 4);
    }
}

/* Returns the CRC-32C of bytes, continued from `crc` (0 at the start). crc32c.py makes `table`, a uint32[8][256]. */
static uint32_t crc_by_table(uint32_t crc, const uint8_t *bytes, int64_t num_bytes, const uint32_t *table) {
    for (; num_bytes >= 8; bytes += 8, num_bytes -= 8) {
        const uint32_t low = crc ^ ((uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24);
        crc = table[7 * 256 + (low & 255)] ^ table[6 * 256 + (low >> 8 & 255)] ^ table[5 * 256 + (low >> 16 & 255)]
            ^ table[4 * 256 + (low >> 24)] ^ table[3 * 256 + bytes[4]] ^ table[2 * 256 + bytes[5]] ^ table[256 + bytes[6]] ^ table[bytes[7]];
    }
    for (; num_bytes > 0; bytes++, num_bytes--) crc = crc >> 8 ^ table[(crc ^ *bytes) & 255];
    return crc;
}

#if defined(__GNUC__) && defined(__x86_64__)
#define HAS_CRC_INSTRUCTION __builtin_cpu_supports("sse4.2")
__attribute__((target("sse4.2")))
static uint32_t crc_by_instruction(uint32_t crc, const uint8_t *bytes, int64_t num_bytes) {
    uint64_t state = crc, word;
    for (; num_bytes >= 8; bytes += 8, num_bytes -= 8) {
        memcpy(&word, bytes, 8);
        state = __builtin_ia32_crc32di(state, word);
    }
    for (; num_bytes > 0; bytes++, num_bytes--) state = __builtin_ia32_crc32qi((uint32_t)state, *bytes);
    return (uint32_t)state;
}
#else
#define HAS_CRC_INSTRUCTION 0
#define crc_by_instruction(crc, bytes, num_bytes) (crc)
#endif

EXPORT uint32_t itm_crc32c(uint32_t crc, const uint8_t *bytes, int64_t num_bytes, const uint32_t *table, int by_table) {
    if (HAS_CRC_INSTRUCTION && !by_table) return ~crc_by_instruction(~crc, bytes, num_bytes);
    return ~crc_by_table(~crc, bytes, num_bytes, table);
}

EXPORT int itm_abi(void) { return 12; }

/* Python's build tools expect an init function, although this library is loaded with ctypes. */
EXPORT void *PyInit__rows(void) { return 0; }
