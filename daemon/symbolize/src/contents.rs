//! Which files that are known apart have the same content: one image layer that is seen through the
//! overlays of many containers.
//!
//! Each overlay gives its files a device number of its own, and a snapshot of btrfs likewise, so
//! device and inode distinguish what is one file on the disk. What is equal for it, and for nothing
//! else, are inode number, size, times and build ID together. A build ID alone would not do: a
//! container may give its file that of another's, and would name the functions of both. Nobody but
//! the owner of a file system sets when an inode changed.

use super::elf;
use super::image::Image;
use super::open;
use hashbrown::{HashMap, HashSet};
use host::ids::FileId;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// Stands for all files with one content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContentId(pub u32);

/// What tells the content of a file from that of others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// Its own: nothing else is known to be the same.
    Own(FileId),
    /// Inode number, size, time of the last write and of the last change in seconds and
    /// nanoseconds, build ID.
    Layer([u64; 6], Arc<[u8]>),
}

/// What an image says of itself.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Its build ID; empty without one.
    pub build_id: Arc<[u8]>,
    /// Of a file that other mounts may show too.
    layer: Option<[u64; 6]>,
}

impl Facts {
    /// Those of an image. Reads it.
    pub fn of(image: &Image) -> Facts {
        let build_id = elf::read_build_id(image).unwrap_or_default();
        let layer = match image {
            Image::File(file, _) => layer(file),
            Image::Remote(_) | Image::Memory(_) => None,
        };
        Facts {
            build_id: build_id.into(),
            layer,
        }
    }
}

fn layer(file: &File) -> Option<[u64; 6]> {
    if !open::device_may_differ(file) {
        return None;
    }
    let facts = file.metadata().ok()?;
    let (written, changed) = (facts.mtime(), facts.ctime());
    let (written_ns, changed_ns) = (facts.mtime_nsec(), facts.ctime_nsec());
    let times = [written, written_ns, changed, changed_ns].map(i64::cast_unsigned);
    let [written, written_ns, changed, changed_ns] = times;
    let (inode, size) = (facts.ino(), facts.len());
    Some([inode, size, written, written_ns, changed, changed_ns])
}

/// The contents of all files known.
#[derive(Debug, Default)]
pub struct Contents {
    ids: HashMap<Key, ContentId>,
    next: u32,
}

impl Contents {
    /// The content of a file.
    pub fn id_of(&mut self, file: FileId, facts: &Facts) -> ContentId {
        let key = match facts.layer {
            Some(layer) => Key::Layer(layer, Arc::clone(&facts.build_id)),
            None => Key::Own(file),
        };
        *self.ids.entry(key).or_insert_with(|| {
            self.next = self.next.wrapping_add(1);
            ContentId(self.next)
        })
    }

    /// Forgets contents of no file.
    pub fn retain(&mut self, used: &HashSet<ContentId>) {
        self.ids.retain(|_, id| used.contains(id));
    }
}
