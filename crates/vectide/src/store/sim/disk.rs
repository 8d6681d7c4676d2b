//! The simulated disk's state: what is written, what is synced, and what a cut leaves of the difference.
//!
//! `store/sim` locks it around every call. Invariant: `durable` of a page, length or directory changes in a sync only.

use super::{Sync, SyncKind};
use crate::store::rng::SplitMix;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, IoSlice};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, LazyLock};

pub(super) const PAGE: usize = 4096;
const ROOT: u64 = 0;
/// States between two syncs that a page or length is remembered in, besides the old and the new one.
const BETWEEN: usize = 3;

type PageBytes = Arc<[u8; PAGE]>;

static ZEROS: LazyLock<PageBytes> = LazyLock::new(|| Arc::new([0; PAGE]));

#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub(super) nodes: BTreeMap<u64, Node>,
    next_node: u64,
    pub(super) used_bytes: u64,
    pub(super) limit_bytes: Option<u64>,
    pub(super) locks: BTreeMap<PathBuf, String>,
    pub(super) skips: Vec<Skip>,
    pub(super) skipped: u64,
}

/// Which syncs are left out.
#[derive(Clone)]
pub(super) struct Skip(pub(super) Arc<dyn Fn(&Sync<'_>) -> bool + Send + std::marker::Sync>);

impl std::fmt::Debug for Skip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Skip")
    }
}

#[derive(Clone, Debug)]
pub(super) enum Node {
    File(FileNode),
    Dir(DirNode),
}

#[derive(Clone, Debug, Default)]
pub(super) struct FileNode {
    pub(super) len: u64,
    durable_len: u64,
    between_lens: Vec<u64>,
    pages: BTreeMap<u64, Page>,
    dirty: BTreeSet<u64>,
    links: u32,
    handles: u32,
}

/// `None` is a hole: it reads as zeros and takes no space.
#[derive(Clone, Debug, Default)]
struct Page {
    now: Option<PageBytes>,
    durable: Option<PageBytes>,
    between: Vec<Option<PageBytes>>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct DirNode {
    pub(super) now: BTreeMap<String, u64>,
    durable: BTreeMap<String, u64>,
    /// Changes since the last sync, oldest first; each happens wholly or not at all.
    pending: Vec<Vec<(String, Option<u64>)>>,
}

impl DirNode {
    fn change(&mut self, entries: Vec<(String, Option<u64>)>) {
        apply(&mut self.now, &entries);
        self.pending.push(entries);
    }
}

fn apply(names: &mut BTreeMap<String, u64>, entries: &[(String, Option<u64>)]) {
    for (name, node) in entries {
        match node {
            Some(node) => names.insert(name.clone(), *node),
            None => names.remove(name),
        };
    }
}

impl FileNode {
    fn page_bytes(&self) -> u64 {
        self.pages.values().filter(|p| p.now.is_some()).count() as u64 * PAGE as u64
    }

    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let n = (buf.len() as u64).min(self.len.saturating_sub(offset)) as usize;
        let mut done = 0;
        while done < n {
            let (page, within, step) = split(offset + done as u64, n - done);
            match self.pages.get(&page).and_then(|p| p.now.as_ref()) {
                Some(bytes) => buf[done..done + step].copy_from_slice(&bytes[within..within + step]),
                None => buf[done..done + step].fill(0),
            }
            done += step;
        }
        n
    }

    /// The page for changing it: what it was is remembered as a state between two syncs.
    fn touch(&mut self, number: u64) -> &mut Page {
        let page = self.pages.entry(number).or_default();
        if !self.dirty.insert(number) {
            if page.between.len() == BETWEEN {
                page.between.remove(0);
            }
            page.between.push(page.now.clone());
        }
        page
    }

    fn resize(&mut self, len: u64) {
        if len != self.len {
            if self.between_lens.len() == BETWEEN {
                self.between_lens.remove(0);
            }
            self.between_lens.push(self.len);
            self.len = len;
        }
    }

    pub(super) fn sync(&mut self) {
        for number in std::mem::take(&mut self.dirty) {
            let page = self.pages.get_mut(&number).expect("a dirty page is there");
            page.durable = page.now.clone();
            page.between.clear();
            if page.now.is_none() {
                self.pages.remove(&number);
            }
        }
        self.durable_len = self.len;
        self.between_lens.clear();
    }

    /// The file as a cut may leave it, synced and closed.
    fn cut(&self, keep: &mut Keep) -> Self {
        let mut lens = vec![self.durable_len];
        lens.extend(&self.between_lens);
        lens.push(self.len);
        let mut left = Self { len: lens[keep.choose(lens.len())], ..Self::default() };
        for (number, page) in &self.pages {
            let mut kept = page.durable.clone();
            if self.dirty.contains(number) {
                let states: Vec<_> = [&page.durable].into_iter().chain(&page.between).chain([&page.now]).collect();
                kept = states[keep.choose(states.len())].clone();
            }
            let start = number * PAGE as u64;
            if let Some(bytes) = kept.filter(|_| start < left.len) {
                let bytes = zero_from(bytes, left.len - start);
                left.pages
                    .insert(*number, Page { now: Some(bytes.clone()), durable: Some(bytes), between: Vec::new() });
            }
        }
        left.durable_len = left.len;
        left
    }
}

/// The page with everything from byte `from` on set to zero.
fn zero_from(mut bytes: PageBytes, from: u64) -> PageBytes {
    if from < PAGE as u64 {
        Arc::make_mut(&mut bytes)[from as usize..].fill(0);
    }
    bytes
}

/// The page that `offset` is in, where in it, and how much of `len` it covers.
fn split(offset: u64, len: usize) -> (u64, usize, usize) {
    let within = (offset % PAGE as u64) as usize;
    (offset / PAGE as u64, within, len.min(PAGE - within))
}

/// What a cut keeps of the unsynced.
struct Keep {
    rng: SplitMix,
    mode: Mode,
}

enum Mode {
    Nothing,
    Everything,
    /// Each thing with this many per mille.
    Some(u32),
}

impl Keep {
    fn new(seed: u64) -> Self {
        let mut rng = SplitMix::new(seed);
        let mode = match seed % 4 {
            0 => Mode::Nothing,
            1 => Mode::Everything,
            _ => Mode::Some(100 + rng.below(801) as u32),
        };
        Self { rng, mode }
    }

    fn happened(&mut self) -> bool {
        match self.mode {
            Mode::Nothing => false,
            Mode::Everything => true,
            Mode::Some(per_mille) => self.rng.hits(per_mille),
        }
    }

    /// Which of `n` states, oldest first, is on the disk.
    fn choose(&mut self, n: usize) -> usize {
        match self.mode {
            Mode::Nothing => 0,
            Mode::Everything => n - 1,
            Mode::Some(per_mille) if self.rng.hits(per_mille) => n - 1,
            Mode::Some(_) => self.rng.below(n as u64) as usize,
        }
    }
}

impl Disk {
    pub(super) fn new() -> Self {
        Self {
            nodes: BTreeMap::from([(ROOT, Node::Dir(DirNode::default()))]),
            next_node: ROOT + 1,
            used_bytes: 0,
            limit_bytes: None,
            locks: BTreeMap::new(),
            skips: Vec::new(),
            skipped: 0,
        }
    }

    pub(super) fn file(&self, id: u64) -> &FileNode {
        match &self.nodes[&id] {
            Node::File(file) => file,
            Node::Dir(_) => unreachable!("handles are of files"),
        }
    }

    pub(super) fn file_mut(&mut self, id: u64) -> &mut FileNode {
        match self.nodes.get_mut(&id) {
            Some(Node::File(file)) => file,
            _ => unreachable!("handles are of files"),
        }
    }

    pub(super) fn dir(&self, id: u64) -> io::Result<&DirNode> {
        match &self.nodes[&id] {
            Node::Dir(dir) => Ok(dir),
            Node::File(_) => Err(ErrorKind::NotADirectory.into()),
        }
    }

    fn dir_mut(&mut self, id: u64) -> io::Result<&mut DirNode> {
        match self.nodes.get_mut(&id) {
            Some(Node::Dir(dir)) => Ok(dir),
            _ => Err(ErrorKind::NotADirectory.into()),
        }
    }

    pub(super) fn resolve(&self, path: &Path) -> io::Result<u64> {
        let mut at = ROOT;
        for part in path.components() {
            at = match part {
                Component::RootDir => ROOT,
                Component::Normal(name) => {
                    let name = name.to_str().ok_or(ErrorKind::InvalidInput)?;
                    *self.dir(at)?.now.get(name).ok_or(ErrorKind::NotFound)?
                }
                _ => return Err(ErrorKind::InvalidInput.into()),
            };
        }
        Ok(at)
    }

    /// The directory that `path` lies in, and its name there.
    fn place(&self, path: &Path) -> io::Result<(u64, String)> {
        let name = path.file_name().and_then(|n| n.to_str()).ok_or(ErrorKind::InvalidInput)?;
        let dir = self.resolve(path.parent().ok_or(ErrorKind::InvalidInput)?)?;
        self.dir(dir)?;
        Ok((dir, name.to_owned()))
    }

    fn find_file(&self, path: &Path) -> io::Result<u64> {
        let id = self.resolve(path)?;
        match self.nodes[&id] {
            Node::File(_) => Ok(id),
            Node::Dir(_) => Err(ErrorKind::IsADirectory.into()),
        }
    }

    fn room(&self, bytes: u64) -> io::Result<()> {
        match self.limit_bytes {
            Some(limit) if self.used_bytes + bytes > limit => Err(ErrorKind::StorageFull.into()),
            _ => Ok(()),
        }
    }

    /// A new node under a free name.
    fn add(&mut self, path: &Path, node: Node) -> io::Result<u64> {
        let (dir, name) = self.place(path)?;
        if self.dir(dir)?.now.contains_key(&name) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        self.room(1)?;
        let id = self.next_node;
        self.next_node += 1;
        self.nodes.insert(id, node);
        self.dir_mut(dir)?.change(vec![(name, Some(id))]);
        Ok(id)
    }

    pub(super) fn create(&mut self, path: &Path) -> io::Result<u64> {
        self.add(path, Node::File(FileNode { links: 1, handles: 1, ..FileNode::default() }))
    }

    pub(super) fn open(&mut self, path: &Path) -> io::Result<u64> {
        let id = self.find_file(path)?;
        self.file_mut(id).handles += 1;
        Ok(id)
    }

    pub(super) fn close(&mut self, id: u64) {
        self.file_mut(id).handles -= 1;
        self.release(id);
    }

    /// Gives a file's space back once it has neither name nor handle. Its synced bytes stay: a cut may bring it back.
    fn release(&mut self, id: u64) {
        let file = self.file(id);
        if file.links == 0 && file.handles == 0 {
            self.used_bytes -= file.page_bytes();
        }
    }

    fn unlink(&mut self, id: u64) {
        self.file_mut(id).links -= 1;
        self.release(id);
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let id = self.find_file(from)?;
        let ((from_dir, from_name), (to_dir, to_name)) = (self.place(from)?, self.place(to)?);
        let replaced = self.dir(to_dir)?.now.get(&to_name).copied();
        if replaced == Some(id) {
            return Ok(());
        }
        if let Some(old) = replaced {
            self.find_file(to)?;
            self.unlink(old);
        }
        if from_dir == to_dir {
            self.dir_mut(to_dir)?.change(vec![(from_name, None), (to_name, Some(id))]);
        } else {
            self.dir_mut(to_dir)?.change(vec![(to_name, Some(id))]);
            self.dir_mut(from_dir)?.change(vec![(from_name, None)]);
        }
        Ok(())
    }

    pub(super) fn hard_link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let id = self.find_file(from)?;
        let (dir, name) = self.place(to)?;
        if self.dir(dir)?.now.contains_key(&name) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        self.file_mut(id).links += 1;
        self.dir_mut(dir)?.change(vec![(name, Some(id))]);
        Ok(())
    }

    pub(super) fn remove_file(&mut self, path: &Path) -> io::Result<()> {
        let id = self.find_file(path)?;
        let (dir, name) = self.place(path)?;
        self.dir_mut(dir)?.change(vec![(name, None)]);
        self.unlink(id);
        Ok(())
    }

    pub(super) fn remove_dir(&mut self, path: &Path) -> io::Result<()> {
        let id = self.resolve(path)?;
        if !self.dir(id)?.now.is_empty() {
            return Err(ErrorKind::DirectoryNotEmpty.into());
        }
        let (dir, name) = self.place(path)?;
        self.dir_mut(dir)?.change(vec![(name, None)]);
        Ok(())
    }

    pub(super) fn remove_dir_all(&mut self, path: &Path) -> io::Result<()> {
        let id = self.resolve(path)?;
        let children: Vec<(String, u64)> = self.dir(id)?.now.iter().map(|(n, id)| (n.clone(), *id)).collect();
        for (name, child) in children {
            match self.nodes[&child] {
                Node::Dir(_) => self.remove_dir_all(&path.join(name))?,
                Node::File(_) => self.remove_file(&path.join(name))?,
            }
        }
        self.remove_dir(path)
    }

    pub(super) fn create_dir_all(&mut self, path: &Path) -> io::Result<()> {
        let mut missing = Vec::new();
        let mut present = path;
        while let Err(e) = self.resolve(present) {
            if e.kind() != ErrorKind::NotFound {
                return Err(e);
            }
            missing.push(present);
            present = present.parent().ok_or(ErrorKind::InvalidInput)?;
        }
        self.dir(self.resolve(present)?)?;
        self.sync_dir(present.parent().unwrap_or(present))?;
        for dir in missing.into_iter().rev() {
            self.add(dir, Node::Dir(DirNode::default()))?;
            self.sync_dir(dir.parent().expect("a missing directory has a parent"))?;
        }
        Ok(())
    }

    pub(super) fn sync_dir(&mut self, path: &Path) -> io::Result<()> {
        let id = self.resolve(path)?;
        self.dir(id)?;
        if !self.skips(SyncKind::Dir, path) {
            let dir = self.dir_mut(id)?;
            dir.durable = dir.now.clone();
            dir.pending.clear();
        }
        Ok(())
    }

    pub(super) fn skips(&mut self, kind: SyncKind, path: &Path) -> bool {
        let sync = Sync { kind, path, point: crate::failpoint::last_on_this_thread() };
        let skip = self.skips.iter().any(|skip| (skip.0)(&sync));
        self.skipped += u64::from(skip);
        skip
    }

    pub(super) fn write(&mut self, id: u64, bufs: &[IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        for mut buf in bufs.iter().map(|b| &**b) {
            while !buf.is_empty() {
                let (number, within, step) = split(offset, buf.len());
                self.page_for_writing(id, number)?[within..within + step].copy_from_slice(&buf[..step]);
                offset += step as u64;
                let file = self.file_mut(id);
                if offset > file.len {
                    file.resize(offset);
                }
                buf = &buf[step..];
            }
        }
        Ok(())
    }

    fn page_for_writing(&mut self, id: u64, number: u64) -> io::Result<&mut [u8; PAGE]> {
        let hole = self.file(id).pages.get(&number).is_none_or(|p| p.now.is_none());
        if hole {
            self.room(PAGE as u64)?;
            self.used_bytes += PAGE as u64;
        }
        let page = self.file_mut(id).touch(number);
        Ok(Arc::make_mut(page.now.get_or_insert_with(|| ZEROS.clone())))
    }

    pub(super) fn allocate(&mut self, id: u64, offset: u64, len: u64) -> io::Result<()> {
        let end = offset.checked_add(len).ok_or(ErrorKind::FileTooLarge)?;
        for number in offset / PAGE as u64..end.div_ceil(PAGE as u64) {
            if self.file(id).pages.get(&number).is_none_or(|p| p.now.is_none()) {
                self.room(PAGE as u64)?;
                self.used_bytes += PAGE as u64;
                self.file_mut(id).touch(number).now = Some(ZEROS.clone());
            }
        }
        let file = self.file_mut(id);
        if end > file.len {
            file.resize(end);
        }
        Ok(())
    }

    pub(super) fn set_len(&mut self, id: u64, len: u64) -> io::Result<()> {
        let file = self.file_mut(id);
        let first = len / PAGE as u64;
        let beyond: Vec<u64> = file.pages.range(first..).filter(|(_, p)| p.now.is_some()).map(|(n, _)| *n).collect();
        let mut freed = 0;
        for number in beyond {
            let start = number * PAGE as u64;
            let page = file.touch(number);
            if start >= len {
                page.now = None;
                freed += PAGE as u64;
            } else {
                page.now = page.now.take().map(|bytes| zero_from(bytes, len - start));
            }
        }
        file.resize(len);
        self.used_bytes -= freed;
        Ok(())
    }

    pub(super) fn flip(&mut self, path: &Path, offset: u64, mask: u8) -> io::Result<()> {
        let id = self.find_file(path)?;
        if offset >= self.file(id).len {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let (number, within, _) = split(offset, 1);
        self.page_for_writing(id, number)?[within] ^= mask;
        let page = self.file_mut(id).pages.get_mut(&number).expect("just written");
        (page.durable, page.between) = (page.now.clone(), Vec::new());
        self.file_mut(id).dirty.remove(&number);
        Ok(())
    }

    /// The same disk with another set of nodes, everything closed and unlocked.
    fn restarted(&self, nodes: BTreeMap<u64, Node>) -> Self {
        let mut disk = Self { nodes, locks: BTreeMap::new(), skipped: 0, used_bytes: 0, ..self.clone_settings() };
        let mut links: BTreeMap<u64, u32> = BTreeMap::new();
        for node in disk.nodes.values() {
            if let Node::Dir(dir) = node {
                for id in dir.now.values() {
                    *links.entry(*id).or_default() += 1;
                }
            }
        }
        let mut used_bytes = 0;
        for (id, node) in &mut disk.nodes {
            if let Node::File(file) = node {
                (file.links, file.handles) = (links.get(id).copied().unwrap_or(0), 0);
                used_bytes += if file.links > 0 { file.page_bytes() } else { 0 };
            }
        }
        disk.used_bytes = used_bytes;
        disk
    }

    fn clone_settings(&self) -> Self {
        Self { next_node: self.next_node, limit_bytes: self.limit_bytes, skips: self.skips.clone(), ..Self::new() }
    }

    pub(super) fn kill(&self) -> Self {
        self.restarted(self.nodes.clone())
    }

    pub(super) fn power_cut(&self, seed: u64) -> Self {
        let mut keep = Keep::new(seed);
        let mut nodes = BTreeMap::new();
        let mut reach = vec![ROOT];
        while let Some(id) = reach.pop() {
            if nodes.contains_key(&id) {
                continue;
            }
            let left = match &self.nodes[&id] {
                Node::File(file) => Node::File(file.cut(&mut keep)),
                Node::Dir(dir) => {
                    let mut names = dir.durable.clone();
                    for change in &dir.pending {
                        if keep.happened() {
                            apply(&mut names, change);
                        }
                    }
                    reach.extend(names.values());
                    Node::Dir(DirNode { durable: names.clone(), now: names, pending: Vec::new() })
                }
            };
            nodes.insert(id, left);
        }
        self.restarted(nodes)
    }
}
