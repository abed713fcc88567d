/* A file-system plugin for TensorFlow. Every operation calls a function of a table that Python fills
 * (table.py). One library serves several schemes, and every TensorFlow with file-system ABI 0. It links
 * only libc; Python passes it the address of TF_SetStatus.
 *
 * Rules:
 * - A reply of Python is valid only if Python has set reply.code. A length is valid only up to the
 *   requested size.
 * - Threads enter Python only between enter() and leave(). After stop() no thread enters it any more: a
 *   thread that waits for the GIL of an ending interpreter crashes the process.
 * - A file is a handle number of Python. Each file keeps the table with which it was opened, because a
 *   reloaded Python module has a table of its own.
 */
#include "_filesystem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

enum {
  TF_OK = 0,
  TF_INVALID_ARGUMENT = 3,
  TF_NOT_FOUND = 5,
  TF_FAILED_PRECONDITION = 9,
  TF_RESOURCE_EXHAUSTED = 8,
  TF_OUT_OF_RANGE = 11,
  TF_INTERNAL = 13,
  TF_UNAVAILABLE = 14
};
enum { UNANSWERED = -1 };
enum { MAKE_DIRECTORY, MAKE_DIRECTORIES, REMOVE_FILE, REMOVE_DIRECTORY, REMOVE_TREE, RENAME, COPY };
enum { TELL, FLUSH, SYNC, CLOSE, DROP };
enum { MAX_SCHEMES = 16, MAX_SCHEME = 32 };
enum { ALIGNMENT = 64 }; /* TensorFlow requires it of memory that becomes a tensor */

/* table.py repeats the layout of reply_t, table_t and `control`. Increase ABI when one of them changes. */
enum { MAGIC = 0x69746D66, ABI = 1 };

typedef struct {
  int64_t number; /* a handle, length, position or count */
  int64_t mtime_ns;
  int32_t is_directory;
  int32_t code; /* TF_OK or an error code; Python writes it last */
  char* text;   /* the message, or names that each end in 0; set by give_text */
  int64_t text_bytes;
} reply_t;

typedef struct {
  void (*open_read)(reply_t*, const char* uri);
  void (*open_write)(reply_t*, const char* uri, int append);
  void (*stat)(reply_t*, const char* uri);
  void (*list)(reply_t*, const char* uri);
  void (*change)(reply_t*, int what, const char* uri, const char* target);
  void (*read)(reply_t*, int64_t handle, uint64_t offset, void* space, int64_t n);
  void (*append)(reply_t*, int64_t handle, const void* data, int64_t n);
  void (*on_file)(reply_t*, int64_t handle, int what);
} table_t;

typedef void (*set_status_t)(TF_Status*, int code, const char* message);

static void start(set_status_t, const table_t*);
static int offer(const char* scheme);
static int give_text(reply_t*, const char* text, int64_t num_bytes);
static int stop(int64_t wait_ms);
static void forked(void);

static const struct {
  uint32_t magic, abi;
  void (*start)(set_status_t, const table_t*);
  int (*offer)(const char*);
  int (*give_text)(reply_t*, const char*, int64_t);
  int (*stop)(int64_t);
  void (*forked)(void);
} control = {MAGIC, ABI, start, offer, give_text, stop, forked};

typedef struct {
  const table_t* table;
  int64_t handle;
} file_t;

typedef struct {
  char* memory;
  char* bytes; /* an aligned address within `memory` */
  int64_t length;
} region_t;

static _Atomic(const table_t*) current_table;
static _Atomic(set_status_t) set_status;
static atomic_int stopped, num_inside, num_schemes;
static char schemes[MAX_SCHEMES][MAX_SCHEME];

/* --- functions that Python calls through `control` ---------------------------------------------- */

static void start(set_status_t how, const table_t* table) {
  atomic_store(&set_status, how);
  atomic_store(&current_table, table);
}

/* Add a scheme for the next TF_InitPlugin. The caller holds the GIL. Returns -1 if there is no room. */
static int offer(const char* scheme) {
  int n = atomic_load(&num_schemes);
  for (int i = 0; i < n; i++)
    if (!strcmp(schemes[i], scheme)) return 0;
  if (n == MAX_SCHEMES || strlen(scheme) >= MAX_SCHEME) return -1;
  strcpy(schemes[n], scheme);
  atomic_store(&num_schemes, n + 1);
  return 0;
}

static int give_text(reply_t* reply, const char* text, int64_t num_bytes) {
  char* copy = malloc((size_t)num_bytes + 1);
  if (!copy) return -1;
  memcpy(copy, text, (size_t)num_bytes);
  copy[num_bytes] = 0;
  free(reply->text);
  reply->text = copy;
  reply->text_bytes = num_bytes;
  return 0;
}

/* Let no more threads enter Python, and wait for those inside. Returns how many are still inside. */
static int stop(int64_t wait_ms) {
  struct timespec ms = {0, 1000000};
  atomic_store(&stopped, 1);
  while (atomic_load(&num_inside) > 0 && wait_ms-- > 0) nanosleep(&ms, NULL);
  return atomic_load(&num_inside);
}

/* In a forked child, the threads that were inside Python do not exist. */
static void forked(void) { atomic_store(&num_inside, 0); }

EXPORT const void* itm_control(void) { return &control; }

EXPORT void* PyInit__filesystem(void) { return 0; }

/* --- one call into Python ----------------------------------------------------------------------- */

static void report(TF_Status* status, int code, const char* message) {
  set_status_t how = atomic_load(&set_status);
  if (how) how(status, code, message);
}

static int enter(reply_t* reply) {
  memset(reply, 0, sizeof *reply);
  reply->code = UNANSWERED;
  atomic_fetch_add(&num_inside, 1);
  if (!atomic_load(&stopped)) return 1;
  atomic_fetch_sub(&num_inside, 1);
  reply->code = TF_UNAVAILABLE;
  return 0;
}

static void leave(void) { atomic_fetch_sub(&num_inside, 1); }

/* Report the outcome of a call, and free its text. Returns whether the call succeeded. */
static int settle(reply_t* reply, TF_Status* status) {
  int ok = reply->code == TF_OK;
  if (ok)
    report(status, TF_OK, "");
  else if (reply->code == UNANSWERED)
    report(status, TF_INTERNAL, "the file system's Python code was interrupted before it answered");
  else if (reply->text)
    report(status, reply->code, reply->text);
  else if (reply->code == TF_UNAVAILABLE)
    report(status, TF_UNAVAILABLE, "the Python interpreter behind this file system is ending");
  else
    report(status, reply->code, "the file system failed and had no memory left to say why");
  free(reply->text);
  reply->text = NULL;
  return ok;
}

#define CALL(reply, function, ...)      \
  do {                                  \
    if (enter(reply)) {                 \
      (function)(reply, __VA_ARGS__);   \
      leave();                          \
    }                                   \
  } while (0)

#define TABLE() atomic_load(&current_table)

/* --- files -------------------------------------------------------------------------------------- */

static int64_t on_file(const file_t* file, int what, TF_Status* status) {
  reply_t reply;
  CALL(&reply, file->table->on_file, file->handle, what);
  if (!settle(&reply, status)) return -1;
  if (what == TELL && reply.number < 0) {
    report(status, TF_INTERNAL, "the file system answered with a negative position");
    return -1;
  }
  return reply.number;
}

static void drop(file_t* file) {
  reply_t reply;
  CALL(&reply, file->table->on_file, file->handle, DROP);
  free(reply.text);
  free(file);
}

static file_t* keep(const table_t* table, reply_t* reply, TF_Status* status) {
  if (!settle(reply, status)) return NULL;
  file_t* file = malloc(sizeof *file);
  if (file) {
    file->table = table;
    file->handle = reply->number;
  } else {
    report(status, TF_RESOURCE_EXHAUSTED, "no memory for an open file");
  }
  return file;
}

static file_t* open_read(const char* path, TF_Status* status) {
  reply_t reply;
  const table_t* table = TABLE();
  CALL(&reply, table->open_read, path);
  return keep(table, &reply, status);
}

static file_t* open_write(const char* path, int append, TF_Status* status) {
  reply_t reply;
  const table_t* table = TABLE();
  CALL(&reply, table->open_write, path, append);
  return keep(table, &reply, status);
}

/* Read up to n bytes. Returns their number (fewer than n at the end of the file), or -1 after an error. */
static int64_t read_some(const file_t* file, uint64_t offset, size_t n, char* space, TF_Status* status) {
  reply_t reply;
  if (n > INT64_MAX) {
    report(status, TF_INVALID_ARGUMENT, "a read of more than 2^63 - 1 bytes");
    return -1;
  }
  CALL(&reply, file->table->read, file->handle, offset, space, (int64_t)n);
  if (!settle(&reply, status)) return -1;
  if (reply.number < 0 || (uint64_t)reply.number > n) {
    report(status, TF_INTERNAL, "the file system answered a read with an impossible number of bytes");
    return -1;
  }
  return reply.number;
}

static int64_t file_read(const TF_RandomAccessFile* file, uint64_t offset, size_t n, char* buffer,
                         TF_Status* status) {
  if (n == 0) {
    report(status, TF_OK, "");
    return 0;
  }
  int64_t got = read_some(file->plugin_file, offset, n, buffer, status);
  if (got >= 0 && (uint64_t)got < n) report(status, TF_OUT_OF_RANGE, "the file ends before all bytes asked for");
  return got;
}

static void file_append(const TF_WritableFile* file, const char* buffer, size_t n, TF_Status* status) {
  const file_t* opened = file->plugin_file;
  reply_t reply;
  if (n == 0) {
    report(status, TF_OK, "");
    return;
  }
  CALL(&reply, opened->table->append, opened->handle, buffer, (int64_t)n);
  settle(&reply, status);
}

static int64_t file_tell(const TF_WritableFile* file, TF_Status* status) {
  return on_file(file->plugin_file, TELL, status);
}
static void file_flush(const TF_WritableFile* file, TF_Status* status) {
  on_file(file->plugin_file, FLUSH, status);
}
static void file_sync(const TF_WritableFile* file, TF_Status* status) {
  on_file(file->plugin_file, SYNC, status);
}
static void file_close(const TF_WritableFile* file, TF_Status* status) {
  on_file(file->plugin_file, CLOSE, status);
}
static void read_cleanup(TF_RandomAccessFile* file) { drop(file->plugin_file); }
static void write_cleanup(TF_WritableFile* file) { drop(file->plugin_file); }

/* --- memory regions: the whole file, read once --------------------------------------------------- */

static void region_cleanup(TF_ReadOnlyMemoryRegion* region) {
  region_t* kept = region->plugin_memory_region;
  free(kept->memory);
  free(kept);
}
static const void* region_data(const TF_ReadOnlyMemoryRegion* region) {
  return ((region_t*)region->plugin_memory_region)->bytes;
}
static uint64_t region_length(const TF_ReadOnlyMemoryRegion* region) {
  return (uint64_t)((region_t*)region->plugin_memory_region)->length;
}

/* --- the file system ---------------------------------------------------------------------------- */

/* This path tests whether this library registered a scheme: its stat returns the address of `control`. */
static int is_probe(const char* path) {
  const char* rest = strstr(path, "://");
  return rest && !strcmp(rest + 3, "\x01ignite_tf_magic.tfplugin");
}

/* Describe a path. With `is_question`, a path below a file is "not found" instead of another error. */
static int get_stat(const char* path, int is_question, TF_FileStatistics* stats, TF_Status* status) {
  reply_t reply;
  if (is_probe(path)) {
    stats->length = (int64_t)(intptr_t)&control;
    stats->mtime_nsec = MAGIC;
    stats->is_directory = false;
    report(status, TF_OK, "");
    return 1;
  }
  CALL(&reply, TABLE()->stat, path);
  if (is_question && reply.code == TF_FAILED_PRECONDITION) reply.code = TF_NOT_FOUND;
  if (!settle(&reply, status)) return 0;
  if (reply.number < 0) {
    report(status, TF_INTERNAL, "the file system answered with a negative file length");
    return 0;
  }
  stats->length = reply.number;
  stats->mtime_nsec = reply.mtime_ns;
  stats->is_directory = reply.is_directory != 0;
  return 1;
}

static void fs_init(TF_Filesystem* fs, TF_Status* status) {
  fs->plugin_filesystem = NULL;
  report(status, TF_OK, "");
}
static void fs_cleanup(TF_Filesystem* fs) { (void)fs; }

static void fs_open_read(const TF_Filesystem* fs, const char* path, TF_RandomAccessFile* file,
                         TF_Status* status) {
  (void)fs;
  file->plugin_file = open_read(path, status);
}
static void fs_open_write(const TF_Filesystem* fs, const char* path, TF_WritableFile* file,
                          TF_Status* status) {
  (void)fs;
  file->plugin_file = open_write(path, 0, status);
}
static void fs_open_append(const TF_Filesystem* fs, const char* path, TF_WritableFile* file,
                           TF_Status* status) {
  (void)fs;
  file->plugin_file = open_write(path, 1, status);
}

static void fs_open_region(const TF_Filesystem* fs, const char* path, TF_ReadOnlyMemoryRegion* region,
                           TF_Status* status) {
  TF_FileStatistics stats;
  (void)fs;
  if (!get_stat(path, 0, &stats, status)) return;
  if (stats.is_directory || stats.length == 0) {
    report(status, stats.is_directory ? TF_FAILED_PRECONDITION : TF_INVALID_ARGUMENT,
           stats.is_directory ? "a directory has no bytes to map" : "an empty file cannot be mapped");
    return;
  }
  file_t* file = open_read(path, status);
  if (!file) return;
  region_t* kept = malloc(sizeof *kept);
  char* memory = malloc((size_t)stats.length + ALIGNMENT);
  char* bytes = (char*)(((uintptr_t)memory + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
  int64_t got = -1;
  if (kept && memory)
    got = read_some(file, 0, (size_t)stats.length, bytes, status);
  else
    report(status, TF_RESOURCE_EXHAUSTED, "no memory for the whole file");
  drop(file);
  if (got < 0) {
    free(memory);
    free(kept);
    return;
  }
  kept->memory = memory;
  kept->bytes = bytes;
  kept->length = got;
  region->plugin_memory_region = kept;
}

static int change(int what, const char* path, const char* target, TF_Status* status) {
  reply_t reply;
  CALL(&reply, TABLE()->change, what, path, target);
  return settle(&reply, status);
}

static void fs_create_dir(const TF_Filesystem* fs, const char* path, TF_Status* status) {
  (void)fs;
  change(MAKE_DIRECTORY, path, "", status);
}
static void fs_create_dirs(const TF_Filesystem* fs, const char* path, TF_Status* status) {
  (void)fs;
  change(MAKE_DIRECTORIES, path, "", status);
}
static void fs_delete_file(const TF_Filesystem* fs, const char* path, TF_Status* status) {
  (void)fs;
  change(REMOVE_FILE, path, "", status);
}
static void fs_delete_dir(const TF_Filesystem* fs, const char* path, TF_Status* status) {
  (void)fs;
  change(REMOVE_DIRECTORY, path, "", status);
}
static void fs_delete_tree(const TF_Filesystem* fs, const char* path, uint64_t* undeleted_files,
                           uint64_t* undeleted_dirs, TF_Status* status) {
  (void)fs;
  *undeleted_files = 0;
  *undeleted_dirs = change(REMOVE_TREE, path, "", status) ? 0 : 1;
}
static void fs_rename(const TF_Filesystem* fs, const char* source, const char* target, TF_Status* status) {
  (void)fs;
  change(RENAME, source, target, status);
}
static void fs_copy(const TF_Filesystem* fs, const char* source, const char* target, TF_Status* status) {
  (void)fs;
  change(COPY, source, target, status);
}

static void fs_stat(const TF_Filesystem* fs, const char* path, TF_FileStatistics* stats, TF_Status* status) {
  (void)fs;
  get_stat(path, 0, stats, status);
}
static void fs_exists(const TF_Filesystem* fs, const char* path, TF_Status* status) {
  TF_FileStatistics stats;
  (void)fs;
  get_stat(path, 1, &stats, status);
}

/* Pass on the whole URI. TensorFlow's own translation would drop the authority. */
static char* fs_translate(const TF_Filesystem* fs, const char* uri) {
  size_t num_bytes = strlen(uri) + 1;
  char* copy = malloc(num_bytes);
  (void)fs;
  return copy ? memcpy(copy, uri, num_bytes) : NULL;
}

/* Copy names that each end in 0 into separate strings. Returns NULL if memory is short, or if there are
 * not `count` names. */
static char** cut_names(const char* names, int64_t num_bytes, int64_t count) {
  char** entries = calloc((size_t)count + 1, sizeof *entries);
  const char* at = names;
  int64_t made = 0;
  for (; entries && made < count && at < names + num_bytes; made++) {
    size_t size = strlen(at) + 1;
    if (!(entries[made] = malloc(size))) break;
    memcpy(entries[made], at, size);
    at += size;
  }
  if (entries && (made < count || at != names + num_bytes)) {
    while (made > 0) free(entries[--made]);
    free(entries);
    entries = NULL;
  }
  return entries;
}

static int fs_list(const TF_Filesystem* fs, const char* path, char*** entries, TF_Status* status) {
  reply_t reply;
  (void)fs;
  CALL(&reply, TABLE()->list, path);
  char* names = reply.code == TF_OK ? reply.text : NULL;
  if (names) reply.text = NULL;
  if (!settle(&reply, status)) return -1;
  char** cut = NULL;
  if (names && reply.number >= 0 && reply.number <= INT32_MAX)
    cut = cut_names(names, reply.text_bytes, reply.number);
  free(names);
  if (!cut) {
    report(status, TF_INTERNAL, "the names in a directory do not fit their count, or memory");
    return -1;
  }
  *entries = cut;
  return (int)reply.number;
}

/* --- registration ------------------------------------------------------------------------------- */

static const TF_RandomAccessFileOps read_ops = {read_cleanup, file_read};
static const TF_WritableFileOps write_ops = {write_cleanup, file_append, file_tell,
                                             file_flush,    file_sync,   file_close};
static const TF_ReadOnlyMemoryRegionOps region_ops = {region_cleanup, region_data, region_length};
/* Not set, so that TensorFlow uses stat and get_children instead: paths_exist, is_directory (whose result
 * it ignores), get_file_size, get_matching_paths. */
static const TF_FilesystemOps fs_ops = {
    .init = fs_init,
    .cleanup = fs_cleanup,
    .new_random_access_file = fs_open_read,
    .new_writable_file = fs_open_write,
    .new_appendable_file = fs_open_append,
    .new_read_only_memory_region_from_file = fs_open_region,
    .create_dir = fs_create_dir,
    .recursively_create_dir = fs_create_dirs,
    .delete_file = fs_delete_file,
    .delete_dir = fs_delete_dir,
    .delete_recursively = fs_delete_tree,
    .rename_file = fs_rename,
    .copy_file = fs_copy,
    .path_exists = fs_exists,
    .stat = fs_stat,
    .translate_name = fs_translate,
    .get_children = fs_list,
};

static void* allocate(size_t num_bytes) { return malloc(num_bytes); }
static void release(void* memory) { free(memory); }

static void* duplicate(const void* bytes, size_t num_bytes) {
  void* copy = malloc(num_bytes);
  return copy ? memcpy(copy, bytes, num_bytes) : NULL;
}

EXPORT void TF_InitPlugin(TF_FilesystemPluginInfo* info) {
  int n = atomic_load(&num_schemes);
  info->plugin_memory_allocate = allocate;
  info->plugin_memory_free = release;
  info->ops = calloc((size_t)n + 1, sizeof *info->ops);
  info->num_schemes = info->ops ? (size_t)n : 0;
  for (size_t i = 0; i < info->num_schemes; i++) {
    TF_FilesystemPluginOps* ops = &info->ops[i];
    ops->scheme = duplicate(schemes[i], strlen(schemes[i]) + 1);
    ops->filesystem_ops_abi = ops->random_access_file_ops_abi = TF_ABI_OF_OPS;
    ops->writable_file_ops_abi = ops->read_only_memory_region_ops_abi = TF_ABI_OF_OPS;
    ops->filesystem_ops_api = ops->random_access_file_ops_api = TF_API_OF_OPS;
    ops->writable_file_ops_api = ops->read_only_memory_region_ops_api = TF_API_OF_OPS;
    ops->filesystem_ops_size = sizeof fs_ops;
    ops->filesystem_ops = duplicate(&fs_ops, sizeof fs_ops);
    ops->random_access_file_ops_size = sizeof read_ops;
    ops->random_access_file_ops = duplicate(&read_ops, sizeof read_ops);
    ops->writable_file_ops_size = sizeof write_ops;
    ops->writable_file_ops = duplicate(&write_ops, sizeof write_ops);
    ops->read_only_memory_region_ops_size = sizeof region_ops;
    ops->read_only_memory_region_ops = duplicate(&region_ops, sizeof region_ops);
  }
}
