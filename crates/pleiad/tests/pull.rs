//! `pleiad pull` against a hub on this machine: what arrives, what does not, and what is asked for again.

#[path = "pull/hub.rs"]
mod hub;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hub::{COMMIT, Fault, File, Hub, NEEDED, REPO, Seen};
use tempfile::TempDir;

const SHARD: &str = "model-00001-of-00002.safetensors";
const OTHER_SHARD: &str = "model-00002-of-00002.safetensors";

/// Someone with an empty home.
struct User {
    home: TempDir,
    variables: Vec<(&'static str, String)>,
}

impl User {
    fn of(hub: &Hub) -> User {
        let home = tempfile::tempdir().unwrap();
        User { home, variables: vec![("HF_ENDPOINT", hub.endpoint.clone())] }
    }

    fn set(mut self, name: &'static str, value: impl Into<String>) -> User {
        self.variables.push((name, value.into()));
        self
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pleiad"));
        // Nothing of the machine's own settings, least of all a proxy or a token.
        command.env_clear().env("HOME", self.home.path()).args(args).stdin(Stdio::null());
        if let Some(root) = std::env::var_os("SYSTEMROOT") {
            command.env("SYSTEMROOT", root).env("USERPROFILE", self.home.path());
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the program starts")
    }

    /// Pulls, expects success, returns the folder and the notes.
    fn pulls(&self, more: &[&str]) -> (PathBuf, String) {
        let output = self.run(&[&["pull", REPO], more].concat());
        let notes = text(&output.stderr);
        assert!(output.status.success(), "{notes}");
        let folder = text(&output.stdout);
        assert_eq!(folder.lines().count(), 1, "{folder}");
        (PathBuf::from(folder.trim_end()), notes)
    }

    /// Pulls, expects exit code 2 and an error with each of `words` in its last line; returns it.
    fn refused(&self, args: &[&str], words: &[&str]) -> String {
        let output = self.run(&[&["pull"], args].concat());
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(output.stdout.is_empty() && !error.contains("panicked"), "{error}");
        let last = error.lines().last().unwrap_or_default();
        for word in words {
            assert!(last.contains(word), "no `{word}` in: {error}");
        }
        error
    }

    /// The folder of the model in the cache.
    fn cache(&self) -> PathBuf {
        self.home.path().join(".cache/huggingface/hub/models--org--model")
    }

    fn blob(&self, hub: &Hub, name: &str) -> PathBuf {
        self.cache().join("blobs").join(hub.file(name).tag())
    }

    fn incomplete(&self, hub: &Hub, name: &str) -> PathBuf {
        self.cache().join("blobs").join(format!("{}.incomplete", hub.file(name).tag()))
    }

    fn leave_incomplete(&self, hub: &Hub, name: &str, bytes: &[u8]) {
        fs::create_dir_all(self.cache().join("blobs")).unwrap();
        fs::write(self.incomplete(hub, name), bytes).unwrap();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// The folder has what a model needs, nothing else, and nothing is left unfinished.
fn check_whole(user: &User, hub: &Hub, folder: &Path) {
    assert_eq!(folder, user.cache().join("snapshots").join(COMMIT));
    let names = |folder: &Path| {
        let entries =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = entries.collect();
        names.sort();
        names
    };
    assert_eq!(names(folder), NEEDED);
    for name in NEEDED {
        assert_eq!(fs::read(folder.join(name)).unwrap(), hub.file(name).bytes, "{name}");
        assert_eq!(fs::read(user.blob(hub, name)).unwrap(), hub.file(name).bytes, "{name}");
    }
    assert_eq!(names(&user.cache().join("blobs")).len(), NEEDED.len());
    assert_eq!(fs::read_to_string(user.cache().join("refs/main")).unwrap(), COMMIT);
}

/// Where the transfers of a file began.
fn starts(hub: &Hub, seen: &[Seen], name: &str) -> Vec<Option<u64>> {
    let path = hub.cdn_path(name);
    seen.iter().filter(|seen| seen.on_cdn && seen.path.starts_with(&path)).map(|seen| seen.start).collect()
}

#[test]
fn a_model_arrives_once() {
    let hub = Hub::new();
    let user = User::of(&hub);
    let (folder, notes) = user.pulls(&[]);
    check_whole(&user, &hub, &folder);
    assert!(notes.contains("7 files, 1.1 MB"), "{notes}");
    let seen = hub.seen();
    assert_eq!(seen.iter().filter(|seen| seen.on_cdn).count(), 3, "{seen:?}");
    assert!(seen.iter().all(|seen| seen.method == "GET" && seen.start.is_none() && seen.token.is_none()));

    let (again, _) = user.pulls(&[]);
    assert_eq!(again, folder);
    let seen = hub.seen();
    assert!(seen.len() == 1 && seen[0].is_list(), "{seen:?}");

    // A commit is a revision too, and needs no reference.
    let (again, _) = user.pulls(&["--revision", COMMIT]);
    assert_eq!(again, folder);
    assert!(hub.seen()[0].path.contains(COMMIT));
    assert_eq!(fs::read_dir(user.cache().join("refs")).unwrap().count(), 1);
    user.pulls(&["--revision", "refs/pr/3"]);
    assert!(hub.seen()[0].path.contains("/revision/refs%2Fpr%2F3?"));
    assert_eq!(fs::read_to_string(user.cache().join("refs/refs/pr/3")).unwrap(), COMMIT);
}

#[test]
fn what_was_fetched_runs() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/qwen3-2bit");
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(fixture).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        files.insert(
            name.clone(),
            File { bytes: fs::read(entry.path()).unwrap(), large: name.ends_with("safetensors") },
        );
    }
    let hub = Hub::with(files, true);
    let user = User::of(&hub);
    let (folder, _) = user.pulls(&[]);
    let output = user.run(&["inspect", folder.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("2-bit"));
}

#[cfg(unix)]
#[test]
fn what_others_have_fetched_is_used() {
    let hub = Hub::new();
    let user = User::of(&hub);
    // As Python leaves it: contents, and links to some of them.
    let (blobs, snapshot) = (user.cache().join("blobs"), user.cache().join("snapshots").join(COMMIT));
    fs::create_dir_all(&blobs).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    for name in NEEDED {
        fs::write(user.blob(&hub, name), &hub.file(name).bytes).unwrap();
    }
    let target = Path::new("../../blobs").join(hub.file("config.json").tag());
    std::os::unix::fs::symlink(target, snapshot.join("config.json")).unwrap();
    std::os::unix::fs::symlink("../../blobs/gone", snapshot.join(SHARD)).unwrap();
    let (folder, _) = user.pulls(&[]);
    check_whole(&user, &hub, &folder);
    assert_eq!(hub.seen().len(), 1);
    let link = fs::read_link(folder.join(SHARD)).unwrap();
    assert_eq!(link, Path::new("../../blobs").join(hub.file(SHARD).tag()));
}

#[test]
fn a_cut_connection_goes_on_where_it_was() {
    let hub = Hub::new();
    let mut cuts = vec![100_000, 250_000];
    hub.faults(move |seen| {
        (seen.on_cdn && seen.path.contains(&hub::model()[SHARD].tag())).then(|| cuts.pop())?.map(Fault::Cut)
    });
    let user = User::of(&hub);
    let (folder, notes) = user.pulls(&[]);
    check_whole(&user, &hub, &folder);
    assert!(notes.contains(SHARD) && notes.contains("trying again"), "{notes}");
    assert_eq!(starts(&hub, &hub.seen(), SHARD), [None, Some(250_000), Some(350_000)]);
}

#[test]
fn a_killed_run_is_taken_up() {
    let hub = Hub::new();
    let tag = hub.file(SHARD).tag();
    hub.faults(move |seen| (seen.on_cdn && seen.path.contains(&tag)).then_some(Fault::Stall(400_000)));
    let user = User::of(&hub);
    let mut run = user.command(&["pull", REPO]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let (start, part) = (Instant::now(), user.incomplete(&hub, SHARD));
    while fs::metadata(&part).map_or(0, |part| part.len()) < 400_000 {
        assert!(start.elapsed() < Duration::from_secs(20), "nothing arrives");
        std::thread::sleep(Duration::from_millis(10));
    }
    run.kill().unwrap();
    run.wait().unwrap();
    assert!(!user.cache().join("snapshots").join(COMMIT).join(SHARD).exists());
    assert!(!user.cache().join("refs/main").exists());
    hub.seen();

    hub.faults(|_| None);
    let (folder, _) = user.pulls(&[]);
    check_whole(&user, &hub, &folder);
    let seen = hub.seen();
    assert_eq!(starts(&hub, &seen, SHARD), [Some(400_000)]);
    assert!(starts(&hub, &seen, "tokenizer.json").is_empty());
}

#[test]
fn parts_that_do_not_fit_are_fetched_anew() {
    let hub = Hub::new();
    let bytes = &hub.file(SHARD).bytes;
    let run = |part: &[u8]| {
        let user = User::of(&hub);
        user.leave_incomplete(&hub, SHARD, part);
        hub.seen();
        let (folder, notes) = user.pulls(&[]);
        check_whole(&user, &hub, &folder);
        (starts(&hub, &hub.seen(), SHARD), notes)
    };
    // Whole already, but without its name.
    assert_eq!(run(bytes).0, []);
    assert_eq!(run(&bytes[..1000]).0, [Some(1000)]);
    assert_eq!(run(&[bytes, &b"more"[..]].concat()).0, [None]);
    // Damaged: seen only at the end.
    let (asked, notes) = run(&[0; 1000]);
    assert_eq!(asked, [Some(1000), None]);
    assert!(notes.contains("damaged"), "{notes}");
    let mut whole = bytes.clone();
    whole[17] ^= 1;
    assert_eq!(run(&whole).0, [None]);
    // A server that does not know ranges, or gives another.
    let tag = hub.file(SHARD).tag();
    let path = tag.clone();
    hub.faults(move |seen| (seen.on_cdn && seen.path.contains(&path)).then_some(Fault::NoRange));
    assert_eq!(run(&bytes[..1000]).0, [Some(1000)]);
    hub.faults(move |seen| {
        (seen.on_cdn && seen.path.contains(&tag) && seen.start.is_some()).then_some(Fault::WrongRange)
    });
    assert_eq!(run(&bytes[..1000]).0, [Some(1000), None]);
}

#[test]
fn damage_is_noticed() {
    for name in [SHARD, "config.json"] {
        let hub = Hub::new();
        let tag = hub.file(name).tag();
        hub.faults(move |seen| {
            let hit = seen.path.contains(&tag) || seen.path.ends_with(name);
            (hit && seen.on_cdn == (name == SHARD)).then_some(Fault::Damage)
        });
        let user = User::of(&hub);
        user.refused(&[REPO], &[name, "damaged", "hash"]);
        assert!(!user.blob(&hub, name).exists() && !user.incomplete(&hub, name).exists());
        assert!(!user.cache().join("snapshots").join(COMMIT).join(name).exists());
        assert!(!user.cache().join("refs/main").exists());
        // What is found whole stays.
        hub.faults(|_| None);
        let (folder, _) = user.pulls(&[]);
        check_whole(&user, &hub, &folder);
    }
}

#[test]
fn refusals_of_the_hub() {
    let hub = Hub::new();
    let user = User::of(&hub);
    let all = |status, code| move |_: &Seen| Some(Fault::Status(status, code));
    hub.faults(all(404, "RepoNotFound"));
    user.refused(&[REPO], &[REPO, "no model", "HF_TOKEN", &hub.endpoint]);
    hub.faults(all(401, "RepoNotFound"));
    user.refused(&[REPO], &["no model", "HF_TOKEN"]);
    hub.faults(all(404, ""));
    user.refused(&[REPO], &["no model"]);
    hub.faults(all(404, "RevisionNotFound"));
    user.refused(&[REPO, "--revision", "v7"], &[REPO, "no revision", "`v7`"]);
    for status in [401, 403] {
        hub.faults(all(status, "GatedRepo"));
        user.refused(&[REPO], &["without a token", "terms", "HF_TOKEN", "as the test wants it"]);
    }
    assert_eq!(hub.seen().len(), 6, "none of them passes by itself");
    // Of a gated model the list is for all, the files are not.
    hub.faults(|seen| (!seen.is_list()).then_some(Fault::Status(403, "GatedRepo")));
    let user = user.set("HF_TOKEN", "hf_secret");
    let error = user.refused(&[REPO], &["with this token", "HF_TOKEN"]);
    assert!(!error.contains("hf_secret"), "{error}");
    // The second server knows no tokens: what it refuses is no matter of terms.
    hub.faults(|seen| seen.on_cdn.then_some(Fault::Status(403, "")));
    user.refused(&[REPO], &["tokenizer.json", "127.0.0.1 answers 403"]);
    hub.faults(|seen| (!seen.is_list()).then_some(Fault::Status(404, "EntryNotFound")));
    user.refused(&[REPO], &["tokenizer.json", "404"]);
}

#[test]
fn troubles_that_pass() {
    let hub = Hub::new();
    let user = User::of(&hub).set("HF_HUB_DOWNLOAD_TIMEOUT", "1");
    hub.once("?blobs=true", Fault::Status(503, ""));
    let (folder, _) = user.pulls(&[]);
    check_whole(&user, &hub, &folder);

    let mut faults = vec![Fault::Status(429, ""), Fault::Status(500, ""), Fault::Stall(1000)];
    hub.faults(move |seen| seen.on_cdn.then(|| faults.pop()).flatten());
    let user = User::of(&hub).set("HF_HUB_DOWNLOAD_TIMEOUT", "1");
    hub.seen();
    let (folder, notes) = user.pulls(&[]);
    check_whole(&user, &hub, &folder);
    for words in ["sends nothing any more", "429", "500"] {
        assert!(notes.contains(words), "no `{words}` in: {notes}");
    }
    assert_eq!(starts(&hub, &hub.seen(), "tokenizer.json"), [None, Some(1000), Some(1000), Some(1000)]);
}

#[test]
fn troubles_that_stay() {
    let hub = Hub::new();
    hub.faults(|_| Some(Fault::Status(502, "")));
    let user = User::of(&hub);
    user.refused(&[REPO], &[REPO, "502"]);
    assert_eq!(hub.seen().len(), 5);
    // What fails while the weights arrive ends all workers, and the rest is kept.
    let path = hub.cdn_path(OTHER_SHARD);
    hub.faults(move |seen| seen.path.starts_with(&path).then_some(Fault::Status(500, "")));
    user.refused(&[REPO], &[OTHER_SHARD, "500"]);
    assert!(!user.cache().join("refs/main").exists());
    assert_eq!(starts(&hub, &hub.seen(), OTHER_SHARD).len(), 5);
}

#[test]
fn silence() {
    let hub = Hub::new();
    hub.faults(|_| Some(Fault::Stall(0)));
    let user = User::of(&hub).set("HF_HUB_DOWNLOAD_TIMEOUT", "1");
    user.refused(&[REPO], &[REPO, "in time"]);
    assert_eq!(hub.seen().len(), 5);
    // Nobody there at all: no reason to wait.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let user = user.set("HF_ENDPOINT", format!("http://{free}"));
    let start = Instant::now();
    user.refused(&[REPO], &["127.0.0.1", "cannot be reached"]);
    assert!(start.elapsed() < Duration::from_secs(3));
}

#[test]
fn the_token_is_for_the_hub_alone() {
    let hub = Hub::new();
    let user = User::of(&hub).set("HF_TOKEN", "hf_secret");
    user.pulls(&[]);
    let seen = hub.seen();
    for seen in &seen {
        assert_eq!(seen.token.as_deref(), (!seen.on_cdn).then_some("Bearer hf_secret"), "{seen:?}");
    }
    assert!(seen.iter().any(|seen| seen.on_cdn));

    // From a file, and where the model has another name by now.
    let user = User::of(&hub);
    fs::create_dir_all(user.home.path().join(".cache/huggingface")).unwrap();
    fs::write(user.home.path().join(".cache/huggingface/token"), "hf_file\n").unwrap();
    hub.faults(|seen| {
        seen.path.contains("old/name").then(|| Fault::Redirect(seen.path.replace("old/name", REPO)))
    });
    let output = user.run(&["pull", "old/name"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("models--old--name"));
    for seen in &hub.seen() {
        assert_eq!(seen.token.as_deref(), (!seen.on_cdn).then_some("Bearer hf_file"), "{seen:?}");
    }
}

#[test]
fn a_list_without_sizes() {
    let hub = Hub::with(hub::model(), false);
    let user = User::of(&hub);
    let (folder, _) = user.pulls(&[]);
    check_whole(&user, &hub, &folder);
    let seen = hub.seen();
    assert!(seen.iter().filter(|seen| seen.method == "HEAD").all(|seen| !seen.on_cdn));
    user.pulls(&[]);
    assert!(hub.seen().iter().all(|seen| seen.is_list() || seen.method == "HEAD"));
}

#[test]
fn offline_means_offline() {
    let hub = Hub::new();
    let user = User::of(&hub).set("HF_HUB_OFFLINE", "1");
    user.refused(&[REPO], &[REPO, "HF_HUB_OFFLINE"]);
    assert!(hub.seen().is_empty());
    let user = user.set("HF_HUB_OFFLINE", "0");
    let (folder, _) = user.pulls(&[]);
    hub.seen();
    let user = user.set("HF_HUB_OFFLINE", "1");
    assert_eq!(user.pulls(&[]).0, folder);
    user.refused(&[REPO, "--revision", "v7"], &["HF_HUB_OFFLINE"]);
    fs::remove_file(folder.join(OTHER_SHARD)).unwrap();
    user.refused(&[REPO], &["not complete"]);
    assert!(hub.seen().is_empty());
}

#[test]
fn the_cache_is_where_variables_say() {
    let hub = Hub::new();
    let place = tempfile::tempdir().unwrap();
    let under = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    for (name, folder) in [("HF_HOME", "hub"), ("HF_HUB_CACHE", ""), ("XDG_CACHE_HOME", "huggingface/hub")] {
        let user = User::of(&hub).set(name, under(name));
        let (found, _) = user.pulls(&[]);
        assert!(found.starts_with(place.path().join(name).join(folder).join("models--org--model")));
        assert_eq!(fs::read_dir(user.home.path()).unwrap().count(), 0);
    }
}

#[test]
fn bad_names() {
    let hub = Hub::new();
    let user = User::of(&hub);
    for name in ["a/../b", "", "x", "../x", "a/b/c", "https://x/y", "a b/c"] {
        user.refused(&["--", name], &[&format!("`{name}`"), "org/name"]);
    }
    for revision in ["", "..", "a/../../b", "/etc"] {
        user.refused(&[REPO, "--revision", revision], &["not a revision"]);
    }
    user.run(&["pull"]).status.code().filter(|code| *code == 2).expect("a model must be named");
    for endpoint in ["localhost", "ftp://127.0.0.1"] {
        User::of(&hub).set("HF_ENDPOINT", endpoint).refused(&[REPO], &["HF_ENDPOINT", endpoint]);
    }
    User::of(&hub)
        .set("HF_HUB_DOWNLOAD_TIMEOUT", "soon")
        .refused(&[REPO], &["HF_HUB_DOWNLOAD_TIMEOUT", "soon"]);
    assert!(hub.seen().is_empty());
}

#[test]
fn what_the_hub_may_not_say() {
    let hub = Hub::new();
    let user = User::of(&hub);
    let list = |sha: &str, names: &[&str]| {
        let siblings: Vec<String> =
            names.iter().map(|name| format!("{{\"rfilename\": \"{name}\"}}")).collect();
        format!("{{\"sha\": \"{sha}\", \"siblings\": [{}]}}", siblings.join(","))
    };
    let says = |text: String, words: &[&str]| {
        hub.faults(move |seen| seen.is_list().then(|| Fault::Body(text.clone())));
        user.refused(&[REPO], words);
    };
    says("no JSON".into(), &["unexpected", "list"]);
    says("{}".into(), &["unexpected", "sha"]);
    says(list("../../evil", &["config.json"]), &["unexpected", "../../evil"]);
    for evil in ["../evil", "a/../../evil.safetensors", "/etc/evil", ".."] {
        says(list(COMMIT, &["config.json", evil]), &["unexpected", evil]);
    }
    says(list(COMMIT, &["config.json", "model.gguf"]), &[REPO, "safetensors", "gguf"]);
    says(list(COMMIT, &["model.safetensors"]), &[REPO, "config.json"]);
    says(list(COMMIT, &["config.json", "model-00001-of-00002.safetensors"]), &["model-00002-of-00002"]);
    let tagged = list(COMMIT, &["config.json", "model.safetensors"]).replace(
        "\"config.json\"",
        "\"config.json\", \"size\": 18446744073709551615, \"blobId\": \"../../evil\"",
    );
    // A hash that is none does not count, and the server has another at hand.
    says(tagged, &["404"]);
    assert!(!user.cache().exists());
    let escaped: Vec<_> = fs::read_dir(user.home.path()).unwrap().collect();
    assert!(escaped.is_empty(), "{escaped:?}");

    // An index is a file like any other.
    let mut files = hub::model();
    let evil = b"{\"weight_map\": {\"a\": \"../../../evil\"}}".to_vec();
    files.insert("model.safetensors.index.json".into(), File { bytes: evil, large: false });
    let hub = Hub::with(files, true);
    User::of(&hub).refused(&[REPO], &["index", "../../../evil"]);

    let hub = Hub::new();
    let user = User::of(&hub);
    hub.faults(|seen| (!seen.is_list()).then(|| Fault::Redirect(seen.path.clone())));
    user.refused(&[REPO], &["redirects"]);
    hub.faults(|seen| (!seen.is_list()).then(|| Fault::Redirect("file:///etc/passwd".into())));
    user.refused(&[REPO], &["redirect"]);
}

#[test]
fn two_at_once_fetch_once() {
    let hub = Hub::new();
    let user = User::of(&hub);
    // Slow enough to meet: the first transfer of the shard breaks off and waits before it goes on.
    hub.faults(|seen| {
        (seen.on_cdn && seen.start.is_none() && seen.path.contains(&hub::model()[SHARD].tag()))
            .then_some(Fault::Cut(1000))
    });
    let spawn =
        || user.command(&["pull", REPO]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let runs = [spawn(), spawn()].map(|run| run.wait_with_output().unwrap());
    for run in &runs {
        assert!(run.status.success(), "{}", text(&run.stderr));
    }
    assert_eq!(runs[0].stdout, runs[1].stdout);
    check_whole(&user, &hub, Path::new(text(&runs[0].stdout).trim_end()));
    assert_eq!(starts(&hub, &hub.seen(), SHARD), [None, Some(1000)]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told() {
    let hub = Hub::new();
    let user = User::of(&hub);
    fs::create_dir_all(user.cache().join("blobs")).unwrap();
    std::os::unix::fs::symlink("/dev/full", user.incomplete(&hub, SHARD)).unwrap();
    user.refused(&[REPO], &["no space left", "700 kB", "HF_HOME"]);
    assert!(!user.blob(&hub, SHARD).exists());
    fs::remove_file(user.incomplete(&hub, SHARD)).unwrap();
    let (folder, _) = user.pulls(&[]);
    check_whole(&user, &hub, &folder);
    // A cache that is no folder.
    let file = user.home.path().join("file");
    fs::write(&file, "").unwrap();
    User::of(&hub).set("HF_HUB_CACHE", file.to_str().unwrap()).refused(&[REPO], &[file.to_str().unwrap()]);
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[test]
fn https() {
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pull/tls");
    let read = |name: &str| fs::read(folder.join(name)).unwrap();
    let certificate = CertificateDer::from(read("server.der"));
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(read("server_key.der")));
    let provider = Arc::new(rustls_graviola::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.unwrap().with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
    let config = Arc::new(config);
    let wrap = move |stream| -> Box<dyn hub::Connection> {
        let connection = rustls::ServerConnection::new(config.clone()).unwrap();
        Box::new(rustls::StreamOwned::new(connection, stream))
    };
    let hub = Hub::wrapped(hub::model(), true, "https", Arc::new(wrap));

    let start = Instant::now();
    User::of(&hub).refused(&[REPO], &["127.0.0.1", "trusted", "certificate"]);
    assert!(start.elapsed() < Duration::from_secs(2), "no reason to ask again");
    assert!(hub.seen().iter().all(|seen| seen.path.is_empty()));

    let user = User::of(&hub).set("SSL_CERT_FILE", folder.join("authority.pem").to_str().unwrap());
    let (folder, _) = user.pulls(&[]);
    check_whole(&user, &hub, &folder);
    User::of(&hub)
        .set("SSL_CERT_FILE", folder.join("config.json").to_str().unwrap())
        .refused(&[REPO], &["SSL_CERT_FILE"]);
}
