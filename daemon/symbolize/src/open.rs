//! Opens files that strangers control: confined to a root, regular files only, never blocking.
//!
//! Every path of another process is an attacker's path. It is resolved with `openat2(2)` relative
//! to that process's root, so `..`, absolute links and magic links cannot lead out; it is opened
//! with `O_PATH` first, which has no side effect on FIFOs and devices; and only what turns out to
//! be a regular file is opened for reading. Needs Linux 5.6.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// How symbolic links inside the root are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Followed, absolute ones relative to the root; links of `/proc` never.
    Inside,
    /// Any link is an error.
    Refuse,
}

/// Why a file was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The path, or the process it belongs to, is not there.
    #[error("failed to open the file: it does not exist")]
    Gone,
    /// A link where none is allowed.
    #[error("failed to open the file: its path has a symbolic link")]
    Link,
    /// A directory, FIFO, socket or device.
    #[error("failed to open the file: it is not a regular file")]
    NotRegular,
    /// Anything else.
    #[error("failed to open the file")]
    Io(#[source] io::Error),
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH | libc::ENOTDIR) => OpenError::Gone,
            Some(libc::ELOOP) => OpenError::Link,
            _ => OpenError::Io(error),
        }
    }
}

/// A directory that paths are confined to.
#[derive(Debug)]
pub struct Root(OwnedFd);

impl Root {
    /// The root directory of a process, in its mount namespace.
    ///
    /// # Errors
    /// When the process is gone, has no root any more, or may not be looked at.
    pub fn of_process(pid: u32) -> Result<Root, OpenError> {
        Root::of_dir(Path::new(&format!("/proc/{pid}/root")))
    }

    /// A directory of the daemon's own mount namespace.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn of_dir(path: &Path) -> Result<Root, OpenError> {
        let dir = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC)
            .open(path)?;
        Ok(Root(dir.into()))
    }

    /// Opens a regular file below this root for reading.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(&self, path: &[u8], links: Links) -> Result<File, OpenError> {
        let resolve = libc::RESOLVE_IN_ROOT
            | libc::RESOLVE_NO_MAGICLINKS
            | if links == Links::Refuse {
                libc::RESOLVE_NO_SYMLINKS
            } else {
                0
            };
        reopen_regular(open_path(self.0.as_raw_fd(), path, resolve)?)
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Opens what a mapping of a process maps: `/proc/PID/map_files/<start>-<end>`, the very file even
/// when it was deleted or lies in another mount namespace. Needs `CAP_CHECKPOINT_RESTORE`.
///
/// # Errors
/// See [`OpenError`].
pub fn open_mapping(pid: u32, start: u64, end: u64) -> Result<File, OpenError> {
    // Unlike in `maps`, the addresses are not padded here.
    let found = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_CLOEXEC)
        .open(format!("/proc/{pid}/map_files/{start:x}-{end:x}"))?;
    reopen_regular(found)
}

/// Opens for reading what `found`, opened with `O_PATH`, stands for.
fn reopen_regular(found: File) -> Result<File, OpenError> {
    let kind = found.metadata()?.file_type();
    if kind.is_symlink() {
        return Err(OpenError::Link);
    }
    if !kind.is_file() || kind.is_fifo() || kind.is_block_device() || kind.is_char_device() {
        return Err(OpenError::NotRegular);
    }
    // Through the descriptor, so that it is the file just looked at and no other.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC)
        .open(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
    Ok(file)
}

fn open_path(root: RawFd, path: &[u8], resolve: u64) -> Result<File, OpenError> {
    let path = CString::new(path).map_err(|_| OpenError::Gone)?;
    // SAFETY: `open_how` is plain integers, for which zero is a value.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC) as u64;
    how.resolve = resolve;
    if resolve & libc::RESOLVE_NO_SYMLINKS == 0 {
        how.flags &= !(libc::O_NOFOLLOW as u64);
    }
    // SAFETY: `path` is NUL-terminated and `how` is of the size given; both outlive the call, which
    // keeps neither.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            root,
            path.as_ptr(),
            &how,
            size_of::<libc::open_how>(),
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: openat2 returned a new descriptor that nothing else owns.
    Ok(unsafe { File::from_raw_fd(fd as RawFd) })
}

/// True if the file system's device numbers differ from those in mappings: overlays and btrfs have
/// device numbers of their own, while a mapping has that of the layer or volume below.
pub fn device_may_differ(file: &File) -> bool {
    const BTRFS_SUPER_MAGIC: i64 = 0x9123_683e;
    let magic = file_system_magic(file);
    magic.is_some_and(|magic| [BTRFS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC].contains(&magic))
}

const OVERLAYFS_SUPER_MAGIC: i64 = 0x794c_7630;

/// True for a file of an overlay.
pub fn is_on_overlay(file: &File) -> bool {
    file_system_magic(file) == Some(OVERLAYFS_SUPER_MAGIC)
}

/// The kernel's handle of the file under an overlay, if it lies on a file system whose handles are
/// inode number and generation in 32 bits each, as ext4's are. `None` before Linux 6.6.
pub fn layer_handle(file: &File) -> Option<Box<[u8]>> {
    /// Identifies the file, but cannot be opened: every file system has it.
    const AT_HANDLE_FID: libc::c_int = 0x200;
    /// Of an overlay: three bytes of padding, version, magic, length, flags, type, file system.
    const TYPE_AT: usize = 7;
    const BYTES: usize = 24 + 8;
    const FILEID_INO32_GEN: u8 = 1;
    #[repr(C)]
    struct Handle {
        bytes: u32,
        kind: i32,
        content: [u8; BYTES],
    }
    let mut handle = Handle {
        bytes: BYTES as u32,
        kind: 0,
        content: [0; BYTES],
    };
    let mut mount = 0;
    // SAFETY: the descriptor is open, the path is empty and NUL-terminated, and `handle` is laid
    // out as `file_handle` with room for as many bytes as it says.
    let result = unsafe {
        libc::name_to_handle_at(
            file.as_raw_fd(),
            c"".as_ptr(),
            (&raw mut handle).cast(),
            &raw mut mount,
            libc::AT_EMPTY_PATH | AT_HANDLE_FID,
        )
    };
    let is_known = result == 0
        && handle.bytes as usize == BYTES
        && handle.content[TYPE_AT] == FILEID_INO32_GEN;
    is_known.then(|| handle.content.into())
}

/// The magic number of the file system that an open file is on. `None` when it does not answer.
pub fn file_system_magic(file: &File) -> Option<i64> {
    // SAFETY: `statfs` is plain integers, for which zero is a value.
    let mut facts: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open and `facts` is a valid place for one `statfs`.
    let result = unsafe { libc::fstatfs(file.as_raw_fd(), &mut facts) };
    // The type of the field differs between architectures; the numbers have 32 bits.
    (result == 0).then_some((facts.f_type as i64) & 0xffff_ffff)
}

/// The generation of the file's inode number, which distinguishes files that had the same number
/// one after the other. `None` on file systems that have none.
pub fn inode_generation(file: &File) -> Option<u32> {
    let mut generation: libc::c_long = 0;
    // SAFETY: the descriptor is open; FS_IOC_GETVERSION writes at most one long to the place given.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_GETVERSION, &mut generation) };
    // The kernel writes 32 bits, whatever the number of the call says.
    (result == 0).then_some(generation as u32)
}

/// Device (major, minor) and inode number of an open file.
pub fn device_and_inode(file: &File) -> io::Result<(u32, u32, u64)> {
    let facts = file.metadata()?;
    Ok((
        libc::major(facts.dev()),
        libc::minor(facts.dev()),
        facts.ino(),
    ))
}

/// A file in memory with this content, for readers that insist on a path.
///
/// # Errors
/// When the kernel refuses or memory is short.
pub fn memory_file(name: &str, content: &[u8]) -> io::Result<File> {
    let name = CString::new(name).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: `name` is NUL-terminated and outlives the call.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: memfd_create returned a new descriptor that nothing else owns.
    let mut file = unsafe { File::from_raw_fd(fd) };
    io::Write::write_all(&mut file, content)?;
    Ok(file)
}

/// Half of the descriptors this process may have, the other half being for everything else.
pub fn half_of_descriptor_limit() -> usize {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid place for one `rlimit`.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    if result == 0 {
        (limit.rlim_cur / 2).min(1 << 20) as usize
    } else {
        512
    }
}

/// The vdso of this process, copied: its pages as the kernel mapped them, an ELF image in memory.
///
/// `None` if the kernel maps none. The auxiliary vector does not have the size, so it is taken from
/// `/proc/self/maps`.
pub fn own_vdso() -> Option<Box<[u8]>> {
    // SAFETY: getauxval only reads what the kernel passed at exec.
    let base = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) };
    if base == 0 {
        return None;
    }
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.ends_with("[vdso]"))?;
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    if start != base || end <= start || end - start > VDSO_BYTES_MAX {
        return None;
    }
    // SAFETY: `start..end` is a readable mapping of this process, listed a moment ago, which the
    // kernel made at exec and which nothing here unmaps or writes.
    let bytes = unsafe { std::slice::from_raw_parts(start as *const u8, (end - start) as usize) };
    Some(bytes.into())
}

/// Largest vdso believed. Unit: bytes. The largest known is 16 KiB; a larger range is a mistake.
const VDSO_BYTES_MAX: u64 = 1 << 20;

/// The path as the kernel writes it, without the mark of deleted files.
pub fn without_deleted(path: &[u8]) -> &[u8] {
    path.strip_suffix(b" (deleted)").unwrap_or(path)
}

/// The last part of a path.
pub fn base_name(path: &[u8]) -> &[u8] {
    let path = without_deleted(path);
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => &path[slash + 1..],
        None => path,
    }
}

/// A path of bytes as the standard library wants it.
pub fn as_path(path: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(path))
}
