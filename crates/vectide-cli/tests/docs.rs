//! Every Markdown file of the repository goes in; the links, anchors and paths in it that lead nowhere come out.
//!
//! Also holds README's two commands and the list of decisions to what they promise. Standard library only. Invariant: a
//! document that names a file of this repository names one that is there.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

/// Folders that hold no documents of ours.
const SKIPPED: [&str; 4] = ["target", "node_modules", "corpus", "artifacts"];
/// A path in backticks that begins with one of these is a path from the root.
const ROOTS: [&str; 8] = [".ci", ".github", "bench-compare", "crates", "data", "docs", "examples", "fuzz"];
/// A path in backticks that ends in `.rs` may also be given from one of these.
const SOURCES: [&str; 3] = ["crates/vectide/src", "crates/vectide-graph/src", "crates/vectide-cli/src"];

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the repository's root is two folders up")
}

fn documents(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && !SKIPPED.contains(&name.as_str()) {
            documents(&path, found);
        } else if path.extension().is_some_and(|e| e == "md") {
            found.push(path);
        }
    }
}

/// What a document says: its text without code, the code spans in it, and its headings' anchors.
#[derive(Debug, Default)]
struct Document {
    /// Line number and text, code spans blanked out.
    prose: Vec<(usize, String)>,
    /// Line number and content of each code span.
    spans: Vec<(usize, String)>,
    anchors: BTreeSet<String>,
}

impl Document {
    fn parse(text: &str) -> Self {
        let mut document = Self::default();
        let mut repeats: HashMap<String, usize> = HashMap::new();
        let mut fenced = false;
        for (number, line) in (1..).zip(text.lines()) {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
            } else if !fenced {
                if let Some(heading) = heading(line) {
                    let slug = slug(heading);
                    let seen = repeats.entry(slug.clone()).or_default();
                    document.anchors.insert(if *seen == 0 { slug } else { format!("{slug}-{seen}") });
                    *seen += 1;
                }
                document.line(number, line);
            }
        }
        document
    }

    fn line(&mut self, number: usize, line: &str) {
        let mut prose = String::new();
        for (i, piece) in line.split('`').enumerate() {
            if i % 2 == 0 {
                prose.push_str(piece);
            } else {
                prose.push('`');
                self.spans.push((number, piece.to_owned()));
            }
        }
        for id in attribute(&prose, "id") {
            self.anchors.insert(id);
        }
        self.prose.push((number, prose));
    }

    /// Line number and target of every link and picture.
    fn links(&self) -> Vec<(usize, String)> {
        let mut links = Vec::new();
        for (number, line) in &self.prose {
            let inline = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
            links.extend(inline.map(|target| (*number, target.to_owned())));
            if let Some((_, target)) = line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")) {
                links.push((*number, target.trim().to_owned()));
            }
            for name in ["href", "src", "srcset"] {
                links.extend(attribute(line, name).into_iter().map(|target| (*number, target)));
            }
        }
        links
    }
}

fn heading(line: &str) -> Option<&str> {
    let text = line.trim_start_matches('#');
    (1..=6).contains(&(line.len() - text.len())).then(|| text.strip_prefix(' ')).flatten()
}

/// A heading's anchor as GitHub makes it.
fn slug(heading: &str) -> String {
    let mut text = String::new();
    // Of a link in a heading only its words count.
    let mut rest = heading;
    while let Some((before, after)) = rest.split_once("](") {
        text.push_str(before);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    text.push_str(rest);
    let kept = text.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The values of `name="..."` in a line.
fn attribute(line: &str, name: &str) -> Vec<String> {
    let opening = format!(" {name}=\"");
    line.split(&opening).skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_owned).collect()
}

/// Whether a code span claims to be a file or folder of this repository; placeholders and patterns do not.
fn repository_path(span: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '-' | '_');
    let first = span.split('/').next().unwrap_or_default();
    span.contains('/')
        && span.chars().all(plain)
        && !span.contains("NNNN")
        && (ROOTS.contains(&first) || Path::new(span).extension().is_some_and(|e| e == "rs"))
}

fn exists(root: &Path, span: &str) -> bool {
    root.join(span).exists() || SOURCES.iter().any(|source| root.join(source).join(span).exists())
}

/// What is wrong with the document at `path`, one line each.
fn complaints(root: &Path, path: &Path, parsed: &HashMap<PathBuf, Document>) -> Vec<String> {
    let document = &parsed[path];
    let shown = path.strip_prefix(root).unwrap_or(path).display();
    let folder = path.parent().expect("a document lies in a folder");
    let mut complaints = Vec::new();
    for (line, link) in document.links() {
        if link.contains("://") || link.starts_with("mailto:") {
            continue;
        }
        let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
        let target = if file.is_empty() { path.to_owned() } else { folder.join(file) };
        let Ok(target) = target.canonicalize() else {
            complaints.push(format!("{shown}:{line}: `{link}` is not there"));
            continue;
        };
        if !target.starts_with(root) {
            complaints.push(format!("{shown}:{line}: `{link}` leads out of the repository"));
        }
        if !anchor.is_empty() && parsed.get(&target).is_some_and(|d| !d.anchors.contains(anchor)) {
            complaints.push(format!("{shown}:{line}: `{link}`: no heading of that name there"));
        }
    }
    let paths = document.spans.iter().filter(|(_, span)| repository_path(span));
    complaints.extend(
        paths
            .filter(|(_, span)| !exists(root, span))
            .map(|(line, span)| format!("{shown}:{line}: `{span}` is not in the repository")),
    );
    complaints
}

#[test]
fn every_link_anchor_and_path_in_the_documents_leads_somewhere() {
    let root = root();
    let mut paths = Vec::new();
    documents(&root, &mut paths);
    let read = |path: &PathBuf| Document::parse(&fs::read_to_string(path).expect("a readable document"));
    let parsed: HashMap<PathBuf, Document> = paths.iter().map(|path| (path.clone(), read(path))).collect();
    assert!(parsed.contains_key(&root.join("README.md")), "the walk finds README.md");
    let mut all: Vec<String> = paths.iter().flat_map(|path| complaints(&root, path, &parsed)).collect();
    all.sort();
    assert!(all.is_empty(), "\n{}", all.join("\n"));
}

#[test]
fn ci_runs_the_two_commands_that_readme_gives() {
    let readme = fs::read_to_string(root().join("README.md")).expect("README.md");
    let ci = fs::read_to_string(root().join(".ci/run")).expect(".ci/run");
    let fence = readme.split("```sh\n").nth(1).expect("README begins with its commands");
    let lines: Vec<&str> = fence.lines().take_while(|line| !line.starts_with("```")).collect();
    let commands: Vec<&str> = lines.iter().filter_map(|line| line.split('#').next()).map(str::trim).collect();
    assert_eq!(commands.len(), 2, "README opens with two commands: {commands:?}");
    for command in commands {
        assert!(ci.contains(command), "`{command}` is in README and not in .ci/run");
    }
}

#[test]
fn every_decision_is_numbered_once_and_listed() {
    let folder = root().join("docs/decisions");
    let list = fs::read_to_string(folder.join("README.md")).expect("the list of decisions");
    let names = fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    let mut pages: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    pages.retain(|page| page.starts_with(|c: char| c.is_ascii_digit()));
    pages.sort();
    for (number, page) in (1..).zip(&pages) {
        assert!(page.starts_with(&format!("{number:04}-")), "{page} is not number {number}");
        assert!(list.contains(&format!("({page})")), "docs/decisions/README.md does not list {page}");
    }
}

#[test]
fn the_checker_finds_what_is_wrong() {
    let root = root();
    let path = root.join("README.md");
    let bad = "# One `two`, three\n# Same\n# Same\n[a](#one-two-three) [b](#same-1) [c](#same-2) [d](no/such.md)\n\
               `crates/none.rs` `crates/vectide` `wal/no_such_file.rs` `a/b`\n<img src=\"none.svg\">\n```\n[e](gone)\n```\n";
    let parsed = HashMap::from([(path.clone(), Document::parse(bad))]);
    let found = complaints(&root, &path, &parsed);
    let expected = ["#same-2", "no/such.md", "none.svg", "crates/none.rs", "wal/no_such_file.rs"];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (complaint, part) in found.iter().zip(expected) {
        assert!(complaint.contains(part), "{complaint} should be about {part}");
    }
}
