/* nfs_client SERVER MOUNTPOINT CACHE WRITE_BEHIND LOCKS: a file system in user space (FUSE) that shows a folder as a
 * client of NFS does. Two of them on one folder are two clients of one server. Linux's own client cannot be had on
 * machines whose kernel lacks it; what a program sees of it is in nfs(5), "Data and metadata coherence":
 *
 *   attributes and names    are kept for CACHE seconds (acregmax, acdirmax), also that there is no such name
 *                           (lookupcache=all); the kernel's cache for FUSE does that
 *   opening a file          asks for its attributes anew, and forgets its content (close-to-open)
 *   opening a folder        does so too: what is looked up in it afterwards is asked for again
 *   writes                  go to the server when the file is closed or flushed, its attributes are asked for, or
 *                           WRITE_BEHIND seconds later (vm.dirty_expire_centisecs)
 *   removing, renaming over of a file that this client has open: the file gets a name .nfs… until it is closed
 *                           by another client: ESTALE, for whoever has it open, or its name in the cache
 *   O_EXCL, link, rename    are decided by the server; locks too, unless LOCKS is 0 (nolock, local_lock=all)
 */
#define FUSE_USE_VERSION 312
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define BUCKETS 4096
#define MOST_BEHIND (1 << 20) /* bytes that are kept back: about wsize */

struct name { /* that somebody has looked up in a folder */
  struct name *next;
  char text[];
};

struct owner { /* of POSIX locks */
  struct owner *next;
  uint64_t id;
  int fd;
};

struct node { /* a file or folder that the kernel knows */
  struct node *next;
  dev_t device;
  ino_t number;
  int fd; /* O_PATH */
  uint64_t known;
  int open;
  char *silly; /* its path since it was removed here while it was open */
  struct name *names;
  struct owner *owners;
  char *behind; /* written, and not told the server yet */
  size_t length;
  off_t start;
  time_t since;
};

static struct fuse_session *session;
static struct node root, *nodes[BUCKETS];
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static double cache, write_behind;

static struct node *of(fuse_ino_t id) { return id == FUSE_ROOT_ID ? &root : (struct node *)id; }

static fuse_ino_t id_of(struct node *node) { return node == &root ? FUSE_ROOT_ID : (fuse_ino_t)node; }

static void path_of(int fd, char *path) { sprintf(path, "/proc/self/fd/%d", fd); }

static int reopened(struct node *node, int flags) {
  char path[64];
  path_of(node->fd, path);
  return open(path, (flags & ~(O_NOFOLLOW | O_CREAT | O_EXCL)) | O_CLOEXEC);
}

/* Have the server know what was written; guarded. */
static int flushed(struct node *node) {
  int error = 0;
  if (!node->length) return 0;
  int fd = reopened(node, O_WRONLY);
  if (fd < 0) error = errno;
  for (size_t done = 0; !error && done < node->length;) {
    ssize_t written = pwrite(fd, node->behind + done, node->length - done, node->start + done);
    if (written < 0) error = errno;
    else done += written;
  }
  if (fd >= 0) close(fd);
  free(node->behind);
  node->behind = NULL;
  node->length = 0;
  return error;
}

static int attributes(struct node *node, struct stat *found) {
  flushed(node);
  if (fstatat(node->fd, "", found, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW)) return errno;
  return found->st_nlink ? 0 : ESTALE; /* the server knows it no more */
}

static void *write_later(void *unused) {
  (void)unused;
  for (;;) {
    sleep(1);
    pthread_mutex_lock(&guard);
    for (int at = 0; at < BUCKETS; at++)
      for (struct node *node = nodes[at]; node; node = node->next)
        if (node->length && difftime(time(NULL), node->since) >= write_behind) flushed(node);
    pthread_mutex_unlock(&guard);
  }
  return NULL;
}

static void remember(struct node *folder, const char *text) {
  for (struct name *name = folder->names; name; name = name->next)
    if (!strcmp(name->text, text)) return;
  struct name *name = malloc(sizeof *name + strlen(text) + 1);
  strcpy(name->text, text);
  name->next = folder->names;
  folder->names = name;
}

/* What the server says of a name; guarded. */
static int look(struct node *folder, const char *text, struct fuse_entry_param *entry) {
  memset(entry, 0, sizeof *entry);
  entry->attr_timeout = entry->entry_timeout = cache;
  remember(folder, text);
  int fd = openat(folder->fd, text, O_PATH | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return errno;
  if (fstatat(fd, "", &entry->attr, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW)) {
    int error = errno;
    close(fd);
    return error;
  }
  struct node **bucket = &nodes[entry->attr.st_ino % BUCKETS], *node = *bucket;
  while (node && (node->number != entry->attr.st_ino || node->device != entry->attr.st_dev)) node = node->next;
  if (node) {
    close(fd);
    int error = attributes(node, &entry->attr);
    if (error) return error;
  } else {
    node = calloc(1, sizeof *node);
    node->fd = fd;
    node->number = entry->attr.st_ino;
    node->device = entry->attr.st_dev;
    node->next = *bucket;
    *bucket = node;
  }
  node->known++;
  entry->ino = id_of(node);
  return 0;
}

static void forget_one(fuse_ino_t id, uint64_t times) {
  if (id == FUSE_ROOT_ID) return;
  struct node *node = of(id);
  if ((node->known -= times)) return;
  flushed(node);
  struct node **place = &nodes[node->number % BUCKETS];
  while (*place != node) place = &(*place)->next;
  *place = node->next;
  for (struct name *name = node->names, *next; name; name = next) next = name->next, free(name);
  for (struct owner *owner = node->owners, *next; owner; owner = next) next = owner->next, close(owner->fd), free(owner);
  free(node->silly);
  close(node->fd);
  free(node);
}

static void reply_entry(fuse_req_t req, struct node *folder, const char *text) {
  struct fuse_entry_param entry;
  int error = look(folder, text, &entry);
  pthread_mutex_unlock(&guard);
  if (error) fuse_reply_err(req, error);
  else fuse_reply_entry(req, &entry);
}

static void nfs_lookup(fuse_req_t req, fuse_ino_t parent, const char *text) {
  struct fuse_entry_param entry;
  pthread_mutex_lock(&guard);
  int error = look(of(parent), text, &entry);
  pthread_mutex_unlock(&guard);
  if (error == ENOENT) fuse_reply_entry(req, &entry); /* without a number: that there is none is kept as well */
  else if (error) fuse_reply_err(req, error);
  else fuse_reply_entry(req, &entry);
}

static void nfs_forget(fuse_req_t req, fuse_ino_t id, uint64_t times) {
  pthread_mutex_lock(&guard);
  forget_one(id, times);
  pthread_mutex_unlock(&guard);
  fuse_reply_none(req);
}

static void nfs_getattr(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *file) {
  struct stat found;
  (void)file;
  pthread_mutex_lock(&guard);
  int error = attributes(of(id), &found);
  pthread_mutex_unlock(&guard);
  if (error) fuse_reply_err(req, error);
  else fuse_reply_attr(req, &found, cache);
}

static void nfs_setattr(fuse_req_t req, fuse_ino_t id, struct stat *wanted, int what, struct fuse_file_info *file) {
  struct node *node = of(id);
  struct stat found;
  char path[64];
  (void)file;
  path_of(node->fd, path);
  pthread_mutex_lock(&guard);
  int error = attributes(node, &found);
  if (!error && what & FUSE_SET_ATTR_MODE && chmod(path, wanted->st_mode)) error = errno;
  if (!error && what & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)) {
    uid_t user = what & FUSE_SET_ATTR_UID ? wanted->st_uid : (uid_t)-1;
    gid_t group = what & FUSE_SET_ATTR_GID ? wanted->st_gid : (gid_t)-1;
    if (fchownat(node->fd, "", user, group, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW)) error = errno;
  }
  if (!error && what & FUSE_SET_ATTR_SIZE && truncate(path, wanted->st_size)) error = errno;
  if (!error && what & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME)) {
    struct timespec times[2] = {{0, UTIME_OMIT}, {0, UTIME_OMIT}};
    if (what & FUSE_SET_ATTR_ATIME_NOW) times[0].tv_nsec = UTIME_NOW;
    else if (what & FUSE_SET_ATTR_ATIME) times[0] = wanted->st_atim;
    if (what & FUSE_SET_ATTR_MTIME_NOW) times[1].tv_nsec = UTIME_NOW;
    else if (what & FUSE_SET_ATTR_MTIME) times[1] = wanted->st_mtim;
    if (utimensat(AT_FDCWD, path, times, 0)) error = errno;
  }
  if (!error) error = attributes(node, &found);
  pthread_mutex_unlock(&guard);
  if (error) fuse_reply_err(req, error);
  else fuse_reply_attr(req, &found, cache);
}

static void nfs_readlink(fuse_req_t req, fuse_ino_t id) {
  char target[4097];
  ssize_t length = readlinkat(of(id)->fd, "", target, sizeof target - 1);
  if (length < 0) {
    fuse_reply_err(req, errno);
    return;
  }
  target[length] = 0;
  fuse_reply_readlink(req, target);
}

static void nfs_mkdir(fuse_req_t req, fuse_ino_t parent, const char *text, mode_t mode) {
  pthread_mutex_lock(&guard);
  int error = mkdirat(of(parent)->fd, text, mode) ? errno : 0;
  if (!error) return reply_entry(req, of(parent), text);
  pthread_mutex_unlock(&guard);
  fuse_reply_err(req, error);
}

static void nfs_mknod(fuse_req_t req, fuse_ino_t parent, const char *text, mode_t mode, dev_t device) {
  pthread_mutex_lock(&guard);
  int error = mknodat(of(parent)->fd, text, mode, device) ? errno : 0;
  if (!error) return reply_entry(req, of(parent), text);
  pthread_mutex_unlock(&guard);
  fuse_reply_err(req, error);
}

static void nfs_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *text) {
  pthread_mutex_lock(&guard);
  int error = symlinkat(target, of(parent)->fd, text) ? errno : 0;
  if (!error) return reply_entry(req, of(parent), text);
  pthread_mutex_unlock(&guard);
  fuse_reply_err(req, error);
}

static void nfs_link(fuse_req_t req, fuse_ino_t id, fuse_ino_t parent, const char *text) {
  char path[64];
  path_of(of(id)->fd, path);
  pthread_mutex_lock(&guard);
  int error = linkat(AT_FDCWD, path, of(parent)->fd, text, AT_SYMLINK_FOLLOW) ? errno : 0;
  if (!error) return reply_entry(req, of(parent), text);
  pthread_mutex_unlock(&guard);
  fuse_reply_err(req, error);
}

/* Keep what this client has open from being removed at the server; guarded. */
static int put_aside(struct node *folder, const char *text) {
  struct stat found;
  if (fstatat(folder->fd, text, &found, AT_SYMLINK_NOFOLLOW)) return errno;
  struct node *node = nodes[found.st_ino % BUCKETS];
  while (node && (node->number != found.st_ino || node->device != found.st_dev)) node = node->next;
  if (!node || !node->open || node->silly) return 0;
  static int count;
  char path[64], where[4097], aside[64];
  path_of(folder->fd, path);
  ssize_t length = readlink(path, where, sizeof where - 1);
  if (length < 0) return errno;
  sprintf(aside, ".nfs%016lx%08x", (unsigned long)found.st_ino, ++count);
  if (renameat(folder->fd, text, folder->fd, aside)) return errno;
  node->silly = malloc(length + strlen(aside) + 2);
  sprintf(node->silly, "%.*s/%s", (int)length, where, aside);
  return -1; /* it is out of the way */
}

static void nfs_unlink(fuse_req_t req, fuse_ino_t parent, const char *text) {
  pthread_mutex_lock(&guard);
  int error = put_aside(of(parent), text);
  if (!error) error = unlinkat(of(parent)->fd, text, 0) ? errno : 0;
  pthread_mutex_unlock(&guard);
  fuse_reply_err(req, error < 0 ? 0 : error);
}

static void nfs_rmdir(fuse_req_t req, fuse_ino_t parent, const char *text) {
  fuse_reply_err(req, unlinkat(of(parent)->fd, text, AT_REMOVEDIR) ? errno : 0);
}

static void nfs_rename(fuse_req_t req, fuse_ino_t from, const char *old, fuse_ino_t to, const char *new, unsigned flags) {
  int error = flags ? EINVAL : 0;
  pthread_mutex_lock(&guard);
  if (!error) put_aside(of(to), new);
  if (!error && renameat(of(from)->fd, old, of(to)->fd, new)) error = errno;
  pthread_mutex_unlock(&guard);
  fuse_reply_err(req, error);
}

static void nfs_open(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *file) {
  struct node *node = of(id);
  struct stat found;
  pthread_mutex_lock(&guard);
  int error = attributes(node, &found), fd = -1;
  /* What is to be written is kept back; reading back needs more than O_WRONLY, and offsets are the kernel's. */
  if (!error && (fd = reopened(node, file->flags & ~O_APPEND)) < 0) error = errno;
  if (!error) node->open++;
  pthread_mutex_unlock(&guard);
  if (error) {
    fuse_reply_err(req, error); /* of ESTALE the kernel looks the name up again, as for NFS */
    return;
  }
  fuse_lowlevel_notify_inval_inode(session, id, -1, 0);
  file->fh = fd;
  fuse_reply_open(req, file);
}

static void nfs_create(fuse_req_t req, fuse_ino_t parent, const char *text, mode_t mode, struct fuse_file_info *file) {
  struct fuse_entry_param entry;
  pthread_mutex_lock(&guard);
  int fd = openat(of(parent)->fd, text, (file->flags & ~O_APPEND) | O_CREAT | O_NOFOLLOW | O_CLOEXEC, mode);
  int error = fd < 0 ? errno : look(of(parent), text, &entry);
  if (!error) of(entry.ino)->open++;
  else if (fd >= 0) close(fd);
  pthread_mutex_unlock(&guard);
  if (error) {
    fuse_reply_err(req, error);
    return;
  }
  file->fh = fd;
  fuse_reply_create(req, &entry, file);
}

static void nfs_read(fuse_req_t req, fuse_ino_t id, size_t size, off_t offset, struct fuse_file_info *file) {
  struct stat found;
  pthread_mutex_lock(&guard);
  int error = attributes(of(id), &found);
  pthread_mutex_unlock(&guard);
  if (error) {
    fuse_reply_err(req, error);
    return;
  }
  struct fuse_bufvec data = FUSE_BUFVEC_INIT(size);
  data.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
  data.buf[0].fd = file->fh;
  data.buf[0].pos = offset;
  fuse_reply_data(req, &data, FUSE_BUF_NO_SPLICE);
}

static void nfs_write(fuse_req_t req, fuse_ino_t id, const char *data, size_t size, off_t offset, struct fuse_file_info *file) {
  struct node *node = of(id);
  struct stat found;
  int error = 0;
  pthread_mutex_lock(&guard);
  if (file->flags & O_APPEND) { /* behind what the server has */
    if (node->length) offset = node->start + node->length;
    else if (!(error = attributes(node, &found))) offset = found.st_size;
  }
  if (node->length && (offset != node->start + (off_t)node->length || node->length + size > MOST_BEHIND))
    error = flushed(node);
  if (!error) {
    if (!node->length) node->start = offset, node->since = time(NULL);
    node->behind = realloc(node->behind, node->length + size);
    memcpy(node->behind + node->length, data, size);
    node->length += size;
  }
  pthread_mutex_unlock(&guard);
  if (error) fuse_reply_err(req, error);
  else fuse_reply_write(req, size);
}

static struct owner *owner_of(struct node *node, uint64_t id) {
  struct owner *owner = node->owners;
  while (owner && owner->id != id) owner = owner->next;
  return owner;
}

static void nfs_flush(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *file) {
  struct node *node = of(id);
  pthread_mutex_lock(&guard);
  int error = flushed(node);
  for (struct owner **place = &node->owners; *place; place = &(*place)->next)
    if ((*place)->id == file->lock_owner) { /* any close of a process drops its POSIX locks */
      struct owner *owner = *place;
      *place = owner->next;
      close(owner->fd);
      free(owner);
      break;
    }
  pthread_mutex_unlock(&guard);
  fuse_reply_err(req, error);
}

static void nfs_fsync(fuse_req_t req, fuse_ino_t id, int data, struct fuse_file_info *file) {
  (void)data, (void)file;
  pthread_mutex_lock(&guard);
  int error = flushed(of(id));
  pthread_mutex_unlock(&guard);
  fuse_reply_err(req, error);
}

static void nfs_release(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *file) {
  struct node *node = of(id);
  pthread_mutex_lock(&guard);
  flushed(node);
  close(file->fh);
  if (!--node->open && node->silly) {
    unlink(node->silly);
    free(node->silly);
    node->silly = NULL;
  }
  pthread_mutex_unlock(&guard);
  fuse_reply_err(req, 0);
}

/* An open folder: what it held when it was opened. */
static void nfs_opendir(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *file) {
  struct node *node = of(id);
  struct stat found;
  int fd = -1;
  pthread_mutex_lock(&guard);
  int error = attributes(node, &found);
  if (!error && (fd = reopened(node, O_RDONLY | O_DIRECTORY)) < 0) error = errno;
  struct name *names = node->names;
  node->names = NULL;
  pthread_mutex_unlock(&guard);
  for (struct name *name = names, *next; name; name = next) {
    next = name->next;
    fuse_lowlevel_notify_expire_entry(session, id, name->text, strlen(name->text), FUSE_LL_EXPIRE_ONLY);
    free(name);
  }
  fuse_lowlevel_notify_inval_inode(session, id, -1, 0);
  if (error) {
    fuse_reply_err(req, error);
    return;
  }
  file->fh = (uint64_t)fdopendir(fd);
  fuse_reply_open(req, file);
}

static void nfs_readdir(fuse_req_t req, fuse_ino_t id, size_t size, off_t offset, struct fuse_file_info *file) {
  DIR *folder = (DIR *)file->fh;
  char *buffer = malloc(size);
  size_t used = 0;
  (void)id;
  if (offset != telldir(folder)) seekdir(folder, offset);
  for (struct dirent *found; (found = readdir(folder));) {
    struct stat about = {.st_ino = found->d_ino, .st_mode = found->d_type << 12};
    size_t needed = fuse_add_direntry(req, buffer + used, size - used, found->d_name, &about, telldir(folder));
    if (needed > size - used) break; /* the next call begins at this one */
    used += needed;
  }
  fuse_reply_buf(req, buffer, used);
  free(buffer);
}

static void nfs_releasedir(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *file) {
  (void)id;
  closedir((DIR *)file->fh);
  fuse_reply_err(req, 0);
}

static void nfs_fsyncdir(fuse_req_t req, fuse_ino_t id, int data, struct fuse_file_info *file) {
  (void)id, (void)data, (void)file;
  fuse_reply_err(req, 0);
}

static void nfs_statfs(fuse_req_t req, fuse_ino_t id) {
  struct statvfs found;
  (void)id;
  if (fstatvfs(root.fd, &found)) fuse_reply_err(req, errno);
  else fuse_reply_statfs(req, &found);
}

static void nfs_flock(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *file, int how) {
  (void)id;
  fuse_reply_err(req, flock(file->fh, how) ? errno : 0);
}

static void nfs_getlk(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *file, struct flock *lock) {
  int fd = reopened(of(id), O_RDWR);
  pthread_mutex_lock(&guard);
  struct owner *owner = owner_of(of(id), file->lock_owner);
  lock->l_pid = 0;
  int error = fd < 0 || fcntl(owner ? owner->fd : fd, F_OFD_GETLK, lock) ? errno : 0;
  pthread_mutex_unlock(&guard);
  if (fd >= 0) close(fd);
  lock->l_pid = 0; /* of another machine */
  if (error) fuse_reply_err(req, error);
  else fuse_reply_lock(req, lock);
}

static void nfs_setlk(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *file, struct flock *lock, int waits) {
  struct node *node = of(id);
  pthread_mutex_lock(&guard);
  struct owner *owner = owner_of(node, file->lock_owner);
  if (!owner) {
    owner = calloc(1, sizeof *owner);
    owner->id = file->lock_owner;
    owner->fd = reopened(node, O_RDWR);
    owner->next = node->owners;
    node->owners = owner;
  }
  int fd = owner->fd;
  pthread_mutex_unlock(&guard);
  lock->l_pid = 0;
  fuse_reply_err(req, fcntl(fd, waits ? F_OFD_SETLKW : F_OFD_SETLK, lock) ? errno : 0);
}

static struct fuse_lowlevel_ops operations = {
    .lookup = nfs_lookup, .forget = nfs_forget, .getattr = nfs_getattr, .setattr = nfs_setattr,
    .readlink = nfs_readlink, .mkdir = nfs_mkdir, .mknod = nfs_mknod, .symlink = nfs_symlink, .link = nfs_link,
    .unlink = nfs_unlink, .rmdir = nfs_rmdir, .rename = nfs_rename, .open = nfs_open, .create = nfs_create,
    .read = nfs_read, .write = nfs_write, .flush = nfs_flush, .fsync = nfs_fsync, .release = nfs_release,
    .opendir = nfs_opendir, .readdir = nfs_readdir, .releasedir = nfs_releasedir, .fsyncdir = nfs_fsyncdir,
    .statfs = nfs_statfs, .flock = nfs_flock, .getlk = nfs_getlk, .setlk = nfs_setlk,
};

int main(int count, char **words) {
  if (count != 6) {
    fprintf(stderr, "usage: %s SERVER MOUNTPOINT CACHE WRITE_BEHIND LOCKS\n", words[0]);
    return 2;
  }
  cache = atof(words[3]);
  write_behind = atof(words[4]);
  if (!atoi(words[5])) operations.flock = NULL, operations.getlk = NULL, operations.setlk = NULL;
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  umask(0);
  root.fd = open(words[1], O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (root.fd < 0) {
    perror(words[1]);
    return 1;
  }
  char *options[] = {words[0], "-o", "allow_other,default_permissions,fsname=nfs_client"};
  struct fuse_args arguments = FUSE_ARGS_INIT(3, options);
  session = fuse_session_new(&arguments, &operations, sizeof operations, NULL);
  if (!session || fuse_set_signal_handlers(session) || fuse_session_mount(session, words[2])) return 1;
  pthread_t later;
  pthread_create(&later, NULL, write_later, NULL);
  puts("ready");
  fflush(stdout);
  struct fuse_loop_config *config = fuse_loop_cfg_create();
  fuse_loop_cfg_set_max_threads(config, 100); /* some wait for locks */
  int failed = fuse_session_loop_mt(session, config);
  fuse_session_destroy(session); /* whoever has started this unmounts it, lazily */
  return failed != 0;
}
