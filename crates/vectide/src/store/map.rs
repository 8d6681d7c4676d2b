//! An open file goes in, its bytes come out, mapped into memory; memory that is about to be filled gets huge pages; and
//! memory that a memtable has left goes back to the system.
//!
//! `store/fs` calls it for [`File::map`](super::File::map), the memtable for the chunks of appenders, `table` when a
//! memtable has become a segment. This is the only file of the crate with `unsafe` in it.
//! Invariant: what is mapped is never written, cut or extended while it is mapped.
#![allow(unsafe_code)]

use bytes::Bytes;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;

/// The first `len` bytes of `file` as memory: pages are read when they are touched, and given back by the kernel under
/// pressure. `UnexpectedEof` if the file is shorter. The mapping lives as long as the last clone of the bytes.
pub(super) fn map(file: &File, len: u64) -> io::Result<Bytes> {
    if file.metadata()?.len() < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if len == 0 {
        return Ok(Bytes::new());
    }
    let size = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    let mut options = memmap2::MmapOptions::new();
    options.len(size);
    // SAFETY:
    // 1. The mapping is read-only and private to reading: no `&mut` to its bytes exists anywhere in the process.
    // 2. The range lies within the file (checked above), and nobody shortens the file afterwards: Vectide maps finished
    //    objects only, which are written under another name, never opened for writing again, and removed by unlinking,
    //    which leaves the pages of a mapping intact. So no access can fault past the end and no byte changes.
    // 3. The file's directory belongs to the database. A foreign process that truncates files in it can still kill
    //    readers with SIGBUS, as with any engine that maps its files; that is outside what we defend against.
    // 4. The mapping owns its pages independently of the descriptor, and `Bytes` owns the mapping until its last clone.
    let mapping = unsafe { options.map(file)? };
    Ok(Bytes::from_owner(mapping))
}

/// Asks the kernel for huge pages behind memory that is about to be written from end to end: a page fault for each 2 MiB
/// instead of each 4 KiB (decision 0007). Advice: where the kernel has none, or cannot, nothing changes.
pub(crate) fn advise_huge<T>(spare: &mut [MaybeUninit<T>]) {
    #[cfg(target_os = "linux")]
    {
        const PAGE: usize = 4096;
        let first = spare.as_ptr().addr() & !(PAGE - 1);
        let len = (spare.as_ptr().addr() + size_of_val(spare)).next_multiple_of(PAGE) - first;
        let start = spare.as_mut_ptr().map_addr(|_| first);
        // SAFETY:
        // 1. MADV_HUGEPAGE changes how a range is backed, never what it holds: it is sound for any range of mapped pages,
        //    also for the bytes of other owners on the first and the last page.
        // 2. The range is that of pages which hold bytes of `spare`, so all of it is mapped.
        // 3. The pointer is not read or written through, and the call keeps nothing.
        let _ = unsafe { libc::madvise(start.cast(), len, libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = spare;
}

/// Buffers from here on are mapped one by one and go back to the system when they are freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_FROM_BYTES: libc::c_int = 256 << 10;

/// Keeps glibc's allocator from holding on to what memtables have left.
///
/// It maps large buffers by themselves, but raises the size from which it does so, up to 32 MiB, with each that is freed;
/// after the first memtable all of its successors' buffers come from the arenas of many threads, which give little back.
/// A log of 1 GiB was replayed in 217 MB where 105 were in use; with the size fixed, in 102 MB. For the whole process, once;
/// other allocators are not touched.
pub(crate) fn settle_allocator() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            // SAFETY: mallopt takes two numbers and only changes how the allocator serves later requests.
            let _ = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM_BYTES) };
        });
    }
}

/// Gives free heap memory back to the system: what small buffers of a memtable have left. Milliseconds for some hundred
/// mebibytes, so not on a thread that answers to anybody. With other allocators than glibc's, nothing is done.
pub(crate) fn give_back_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: malloc_trim may be called at any time from any thread; it only touches memory that nobody holds.
        let _ = unsafe { libc::malloc_trim(0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_outlives_the_file_and_its_name() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("x");
        std::fs::write(&path, vec![7u8; 10_000]).expect("written");
        let file = File::open(&path).expect("opened");
        let bytes = map(&file, 10_000).expect("mapped");
        drop(file);
        std::fs::remove_file(&path).expect("removed");
        assert!(bytes.slice(9_000..).iter().all(|b| *b == 7));
    }

    #[test]
    fn a_file_shorter_than_asked_is_refused_before_it_is_touched() {
        let file = tempfile::tempfile().expect("a temporary file");
        assert_eq!(map(&file, 1).expect_err("too short").kind(), io::ErrorKind::UnexpectedEof);
        assert!(map(&file, 0).expect("nothing to map").is_empty());
    }
}
