//! stub
use crate::ids::*;
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FileIdentity {
    BuildId {
        bytes: [u8; 20],
        len: u8,
    },
    Inode {
        major: u32,
        minor: u32,
        inode: u64,
        generation: u64,
    },
    Vdso,
    Path,
}
pub struct FileSeen {
    pub id: FileId,
    pub identity: FileIdentity,
    pub path: Box<[u8]>,
    pub pid: Pid,
    pub range: (Avma, Avma),
    pub relatives: [Pid; 2],
}
