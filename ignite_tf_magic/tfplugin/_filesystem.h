/* The part of TensorFlow's modular file-system interface (C, ABI 0) that _filesystem.c uses. It is declared
 * here so that the build needs no TensorFlow. The tables may be shorter than TensorFlow's: it copies
 * filesystem_ops_size bytes and treats the rest as not implemented. tests/tfplugin/test_abi.py compares
 * this file with the header of the installed TensorFlow. */
#ifndef IGNITE_TF_MAGIC_FILESYSTEM_H
#define IGNITE_TF_MAGIC_FILESYSTEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct TF_Status TF_Status; /* TensorFlow's own; changed by TF_SetStatus only */

typedef struct TF_RandomAccessFile { void* plugin_file; } TF_RandomAccessFile;
typedef struct TF_WritableFile { void* plugin_file; } TF_WritableFile;
typedef struct TF_ReadOnlyMemoryRegion { void* plugin_memory_region; } TF_ReadOnlyMemoryRegion;
typedef struct TF_Filesystem { void* plugin_filesystem; } TF_Filesystem;

typedef struct TF_FileStatistics {
  int64_t length;
  int64_t mtime_nsec;
  bool is_directory;
} TF_FileStatistics;

typedef struct TF_RandomAccessFileOps {
  void (*cleanup)(TF_RandomAccessFile* file);
  int64_t (*read)(const TF_RandomAccessFile* file, uint64_t offset, size_t n, char* buffer,
                  TF_Status* status);
} TF_RandomAccessFileOps;

typedef struct TF_WritableFileOps {
  void (*cleanup)(TF_WritableFile* file);
  void (*append)(const TF_WritableFile* file, const char* buffer, size_t n, TF_Status* status);
  int64_t (*tell)(const TF_WritableFile* file, TF_Status* status);
  void (*flush)(const TF_WritableFile* file, TF_Status* status);
  void (*sync)(const TF_WritableFile* file, TF_Status* status);
  void (*close)(const TF_WritableFile* file, TF_Status* status);
} TF_WritableFileOps;

typedef struct TF_ReadOnlyMemoryRegionOps {
  void (*cleanup)(TF_ReadOnlyMemoryRegion* region);
  const void* (*data)(const TF_ReadOnlyMemoryRegion* region);
  uint64_t (*length)(const TF_ReadOnlyMemoryRegion* region);
} TF_ReadOnlyMemoryRegionOps;

typedef struct TF_FilesystemOps {
  void (*init)(TF_Filesystem* filesystem, TF_Status* status);
  void (*cleanup)(TF_Filesystem* filesystem);
  void (*new_random_access_file)(const TF_Filesystem* filesystem, const char* path,
                                 TF_RandomAccessFile* file, TF_Status* status);
  void (*new_writable_file)(const TF_Filesystem* filesystem, const char* path, TF_WritableFile* file,
                            TF_Status* status);
  void (*new_appendable_file)(const TF_Filesystem* filesystem, const char* path, TF_WritableFile* file,
                              TF_Status* status);
  void (*new_read_only_memory_region_from_file)(const TF_Filesystem* filesystem, const char* path,
                                                TF_ReadOnlyMemoryRegion* region, TF_Status* status);
  void (*create_dir)(const TF_Filesystem* filesystem, const char* path, TF_Status* status);
  void (*recursively_create_dir)(const TF_Filesystem* filesystem, const char* path, TF_Status* status);
  void (*delete_file)(const TF_Filesystem* filesystem, const char* path, TF_Status* status);
  void (*delete_dir)(const TF_Filesystem* filesystem, const char* path, TF_Status* status);
  void (*delete_recursively)(const TF_Filesystem* filesystem, const char* path,
                             uint64_t* undeleted_files, uint64_t* undeleted_dirs, TF_Status* status);
  void (*rename_file)(const TF_Filesystem* filesystem, const char* src, const char* dst,
                      TF_Status* status);
  void (*copy_file)(const TF_Filesystem* filesystem, const char* src, const char* dst,
                    TF_Status* status);
  void (*path_exists)(const TF_Filesystem* filesystem, const char* path, TF_Status* status);
  bool (*paths_exist)(const TF_Filesystem* filesystem, char** paths, int num_files,
                      TF_Status** statuses);
  void (*stat)(const TF_Filesystem* filesystem, const char* path, TF_FileStatistics* stats,
               TF_Status* status);
  bool (*is_directory)(const TF_Filesystem* filesystem, const char* path, TF_Status* status);
  int64_t (*get_file_size)(const TF_Filesystem* filesystem, const char* path, TF_Status* status);
  char* (*translate_name)(const TF_Filesystem* filesystem, const char* uri);
  int (*get_children)(const TF_Filesystem* filesystem, const char* path, char*** entries,
                      TF_Status* status);
} TF_FilesystemOps;

enum { TF_ABI_OF_OPS = 0, TF_API_OF_OPS = 0 }; /* one number for all four tables */

typedef struct TF_FilesystemPluginOps {
  char* scheme;
  int filesystem_ops_abi;
  int filesystem_ops_api;
  size_t filesystem_ops_size;
  TF_FilesystemOps* filesystem_ops;
  int random_access_file_ops_abi;
  int random_access_file_ops_api;
  size_t random_access_file_ops_size;
  TF_RandomAccessFileOps* random_access_file_ops;
  int writable_file_ops_abi;
  int writable_file_ops_api;
  size_t writable_file_ops_size;
  TF_WritableFileOps* writable_file_ops;
  int read_only_memory_region_ops_abi;
  int read_only_memory_region_ops_api;
  size_t read_only_memory_region_ops_size;
  TF_ReadOnlyMemoryRegionOps* read_only_memory_region_ops;
} TF_FilesystemPluginOps;

typedef struct TF_FilesystemPluginInfo {
  size_t num_schemes;
  TF_FilesystemPluginOps* ops;
  void* (*plugin_memory_allocate)(size_t size);
  void (*plugin_memory_free)(void* ptr);
} TF_FilesystemPluginInfo;

#endif
