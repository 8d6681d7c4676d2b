//! Reads one epoch's log files, frame by frame, and tells a torn tail from damage.
//!
//! [`replay`](super::replay) and [`tail`](super::tail) call it from a blocking task. Invariants: it holds at most one
//! piece of a file and one frame; it writes nothing; it says that the log ends only where nothing later proves that more
//! was durable. What proves it: a later file (files are made only when all before them is synced), or any frame behind
//! whose header says that it was.

use super::frame::{FileHeader, Frame, FrameHeader, HEADER_BYTES, HeaderRead, LogSchema, MAX_KEY_BYTES, aligned};
use super::local::list_files;
use super::{epoch_name, log_file_name};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Epoch, LogPosition};
use crate::store::{File, Fs};
use arrow::buffer::MutableBuffer;
use std::path::PathBuf;
use std::sync::Arc;

/// How much of a file is read at once.
const PIECE_BYTES: usize = 1 << 20;

/// One epoch's log, being read.
pub(super) struct LocalReader {
    fs: Arc<dyn Fs>,
    schema: Arc<LogSchema>,
    dir: PathBuf,
    epoch: Epoch,
    starts: Vec<u64>,
    open: Option<OpenFile>,
    position: u64,
    /// Where the current file begins, as long as no frame was read from it.
    entered_at: Option<u64>,
    /// Files that frames were read from.
    touched: Vec<Arc<dyn File>>,
}

struct OpenFile {
    file: Arc<dyn File>,
    path: PathBuf,
    start: u64,
    len: u64,
    piece: Vec<u8>,
    piece_at: u64,
    was_read: bool,
}

impl LocalReader {
    /// Starts at `from`, which is the position of a frame, of a file, or of the log's end.
    pub(super) fn open(
        fs: Arc<dyn Fs>,
        wal_dir: &std::path::Path,
        schema: Arc<LogSchema>,
        from: LogPosition,
    ) -> Result<Self> {
        let dir = wal_dir.join(epoch_name(from.epoch));
        let starts = list_files(fs.as_ref(), &dir)?;
        let mut reader = Self {
            fs,
            schema,
            dir,
            epoch: from.epoch,
            starts,
            open: None,
            position: from.at,
            entered_at: None,
            touched: Vec::new(),
        };
        if let Some(&start) = reader.starts.iter().rev().find(|&&start| start <= from.at)
            && start < from.at
        {
            // A file that ends before `from` was closed there: the next frame will stand in a file of its own.
            let file = reader.open_file(start)?;
            if from.at - start <= file.len {
                reader.open = Some(file);
            }
        }
        Ok(reader)
    }

    /// Where the next frame is expected.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Where the log ends, once [`LocalReader::next`] has answered `None`: behind the last frame. A file that holds none
    /// does not count, because neither its header nor its name need be durable.
    pub(super) fn end_position(&self) -> u64 {
        self.entered_at.unwrap_or(self.position)
    }

    /// The files that frames were read from.
    pub(super) fn touched(&self) -> &[Arc<dyn File>] {
        &self.touched
    }

    /// The next frame; `None` at `limit`, or without one where the log ends. Its position is `header.at`; afterwards
    /// [`LocalReader::position`] is behind it.
    ///
    /// # Errors
    /// `Corrupt`, naming file and offset, if the log goes on behind bytes that are no frame, or does not reach `limit`.
    pub(super) fn next(&mut self, limit: Option<u64>) -> Result<Option<Frame>> {
        loop {
            if limit.is_some_and(|limit| self.position >= limit) {
                return Ok(None);
            }
            let Some(open) = &mut self.open else { if self.enter_file(limit)? { continue } else { return Ok(None) } };
            let offset = self.position - open.start;
            match FrameHeader::parse(open.peek(offset, HEADER_BYTES + 64)?, self.epoch, self.position) {
                HeaderRead::Whole { header, len } => match open.read_body(header, offset + len as u64)? {
                    Some(frame) => {
                        if !std::mem::replace(&mut open.was_read, true) {
                            self.touched.push(Arc::clone(&open.file));
                        }
                        self.position += len as u64 + frame.header.body_len;
                        self.entered_at = None;
                        return Ok(Some(frame));
                    }
                    None => return self.end("the frame's body is cut off or its checksum does not match", limit),
                },
                // The file ends here, and another begins here or should.
                HeaderRead::Zero if self.starts.contains(&self.position) => self.open = None,
                HeaderRead::Zero if offset >= open.len && self.starts.last().is_some_and(|&l| l > self.position) => {
                    self.open = None;
                }
                HeaderRead::Zero => return self.end("nothing is written here", limit),
                HeaderRead::Short(_) => return self.end("the frame's header is cut off", limit),
                HeaderRead::Bad(why) => return self.end(why, limit),
                HeaderRead::Foreign(why) => return Err(self.damage(why)),
            }
        }
    }

    /// Opens the file that begins at the position; `false` if the log ends here.
    fn enter_file(&mut self, limit: Option<u64>) -> Result<bool> {
        if !self.starts.contains(&self.position) {
            return self.end("the log file that begins here is missing", limit).map(|_| false);
        }
        let mut file = self.open_file(self.position)?;
        let mut want = PIECE_BYTES;
        let header = loop {
            match self.schema.parse_file_header(file.peek(0, want)?, self.epoch, self.position) {
                FileHeader::Short(needed) if needed > want && needed as u64 <= file.len => want = needed,
                other => break other,
            }
        };
        self.open = Some(file);
        match header {
            FileHeader::Whole { len } => {
                self.entered_at = Some(self.position);
                self.position += len as u64;
                Ok(true)
            }
            FileHeader::Short(_) => self.end("the file's header is cut off", limit).map(|_| false),
            FileHeader::Bad(why) => self.end(&why, limit).map(|_| false),
            FileHeader::Foreign(why) => Err(self.damage(&why)),
        }
    }

    fn open_file(&self, start: u64) -> Result<OpenFile> {
        let path = self.dir.join(log_file_name(start));
        let doing = |e| Error::io(format!("reading {}", path.display()), e);
        let file = self.fs.open(&path, false).map_err(doing)?;
        let len = file.len().map_err(doing)?;
        Ok(OpenFile { file, path, start, len, piece: Vec::new(), piece_at: 0, was_read: false })
    }

    /// The log ends at the position, unless something proves that more was durable.
    fn end(&mut self, why: &str, limit: Option<u64>) -> Result<Option<Frame>> {
        if limit.is_some() || self.starts.last().is_some_and(|&last| last > self.position) || self.later_frame()? {
            return Err(self.damage(why));
        }
        Ok(None)
    }

    /// Whether a frame further on in the file was sealed when bytes beyond the position were already durable.
    fn later_frame(&mut self) -> Result<bool> {
        let Some(open) = &mut self.open else { return Ok(false) };
        let mut offset = (self.position - open.start).next_multiple_of(8);
        while offset + HEADER_BYTES as u64 <= open.len {
            let (start, len) = (open.start, open.len);
            let piece = open.peek(offset, PIECE_BYTES)?;
            // A header near the piece's end is looked at again in the next piece, with its key.
            let is_last = offset + piece.len() as u64 >= len;
            let until =
                piece.len().saturating_sub(if is_last { HEADER_BYTES - 1 } else { HEADER_BYTES + MAX_KEY_BYTES });
            for at in (0..until).step_by(8).filter(|&at| FrameHeader::may_begin(&piece[at..])) {
                let place = start + offset + at as u64;
                if let HeaderRead::Whole { header, .. } = FrameHeader::parse(&piece[at..], self.epoch, place)
                    && header.synced_to > self.position
                {
                    return Ok(true);
                }
            }
            if is_last || until == 0 {
                break;
            }
            offset += until.next_multiple_of(8) as u64;
        }
        Ok(false)
    }

    fn damage(&self, why: &str) -> Error {
        let place = LogPosition { epoch: self.epoch, at: self.position };
        let (path, offset) = match &self.open {
            Some(open) => (open.path.clone(), self.position - open.start),
            None => (self.dir.join(log_file_name(self.position)), 0),
        };
        Error::new(
            ErrorKind::Corrupt,
            format!(
                "log file {} is damaged at byte {offset} (log position {place}): {why}, and what follows was already \
                 durable. Restore the table from a backup; `vectide verify` shows what else is affected",
                path.display()
            ),
        )
    }
}

impl OpenFile {
    /// The bytes from `offset` on: at least `want` of them, unless the file ends before.
    fn peek(&mut self, offset: u64, want: usize) -> Result<&[u8]> {
        let held = self.piece_at + self.piece.len() as u64;
        let has = offset >= self.piece_at && (offset + want as u64 <= held || (held >= self.len && offset <= held));
        if !has {
            let size = (want.max(PIECE_BYTES) as u64).min(self.len.saturating_sub(offset)) as usize;
            self.piece.resize(size, 0);
            let read = read_full(self.file.as_ref(), &mut self.piece, offset).map_err(|e| self.failed(offset, e))?;
            self.piece.truncate(read);
            self.piece_at = offset;
        }
        Ok(&self.piece[(offset - self.piece_at) as usize..])
    }

    /// The frame of `header` with the body at `offset`; `None` if the body is cut off or another one.
    fn read_body(&mut self, header: FrameHeader, offset: u64) -> Result<Option<Frame>> {
        if offset + header.body_len > self.len {
            return Ok(None);
        }
        let len = header.body_len as usize;
        let body = if len <= PIECE_BYTES {
            match self.peek(offset, len)?.get(..len) {
                Some(bytes) => aligned(bytes),
                None => return Ok(None),
            }
        } else {
            let mut body = MutableBuffer::from_len_zeroed(len);
            let read = read_full(self.file.as_ref(), &mut body, offset).map_err(|e| self.failed(offset, e))?;
            if read < len {
                return Ok(None);
            }
            body.into()
        };
        let frame = Frame { header, body };
        Ok(frame.body_is_whole().then_some(frame))
    }

    fn failed(&self, offset: u64, e: std::io::Error) -> Error {
        Error::io(format!("reading {} at byte {offset}", self.path.display()), e)
    }
}

/// Fills `buf` from `offset` on, as far as the file goes.
fn read_full(file: &dyn File, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], offset + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}
