//! Goal: arrays that Linux made are read right, and looking at them changes nothing. Method: every
//! golden image is given to `cat`, `examine` and `detail`; the content's hash and every field that
//! mdadm prints as well must be those recorded, and no byte of a member may differ afterwards.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{run, scratch, succeed, succeed_text, uraid};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// One golden array, unpacked.
struct Golden {
    name: String,
    manifest: Value,
    folder: PathBuf,
    /// Members with a superblock, by the manifest's names.
    members: Vec<PathBuf>,
    /// What they hold.
    images: Vec<Vec<u8>>,
}

impl Golden {
    fn unpack(folder: &Path, to: &Path) -> Self {
        let manifest = fs::read(folder.join("manifest.json")).unwrap();
        let manifest: Value = serde_json::from_slice(&manifest).unwrap();
        let (mut members, mut images) = (Vec::new(), Vec::new());
        for member in manifest["members"].as_array().unwrap() {
            let file = member["file"].as_str().unwrap();
            let bytes = zstd::decode_all(fs::File::open(folder.join(file)).unwrap()).unwrap();
            // What never was a member must not be named as one.
            if !member["version"].is_null() {
                let path = to.join(file.trim_end_matches(".img.zst"));
                fs::write(&path, &bytes).unwrap();
                members.push(path);
                images.push(bytes);
            }
        }
        let name = manifest["name"].as_str().unwrap().to_owned();
        Self { name, manifest, folder: folder.to_owned(), members, images }
    }

    fn is_untouched(&self) -> bool {
        self.members.iter().zip(&self.images).all(|(path, image)| fs::read(path).unwrap() == *image)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.folder.join(name)).unwrap_or_default()
    }

    /// SHA-256 of what the array holds, as md read it.
    fn content(&self) -> Option<&str> {
        let after = &self.manifest["after_recovery"]["logical_sha256"];
        self.manifest["logical_sha256"].as_str().or_else(|| after.as_str())
    }

    /// The word with which `cat` refuses the array, where it has to.
    fn refusal(&self) -> Option<&'static str> {
        let words = [("midreshape", "reshape")];
        words.into_iter().find_map(|(name, word)| self.name.contains(name).then_some(word))
    }
}

/// Runs `check` on each golden array, unpacked into a folder of its own.
fn each(check: impl Fn(&Golden) -> Vec<String>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../raid-core/tests/golden");
    let mut folders = vec![folder];
    // Further ones, which are too many for the repository.
    folders.extend(std::env::var_os("URAID_GOLDEN").map(PathBuf::from));
    let mut problems = Vec::new();
    let mut seen = 0;
    for folder in folders {
        let entries = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let mut arrays: Vec<PathBuf> =
            entries.filter(|path| path.join("manifest.json").exists()).collect();
        arrays.sort();
        for array in arrays {
            let scratch = scratch();
            let golden = Golden::unpack(&array, scratch.path());
            problems.extend(check(&golden).iter().map(|what| format!("{}: {what}", golden.name)));
            assert!(golden.is_untouched(), "{}: a member was changed", golden.name);
            seen += 1;
        }
    }
    assert!(problems.is_empty(), "{} problems\n{}", problems.len(), problems.join("\n"));
    assert!(seen >= 60, "only {seen} golden arrays");
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn contents_are_those_that_md_read() {
    each(|golden| {
        let output = run(uraid().arg("cat").args(&golden.members));
        let error = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        match golden.refusal() {
            Some(word) if output.status.success() => vec![format!("{word} was not refused")],
            Some(word) if !error.contains(word) => vec![format!("refused without {word}: {error}")],
            Some(_) => Vec::new(),
            None if !output.status.success() => vec![error],
            None if golden.content() != Some(&sha256(&output.stdout)) => {
                vec!["another content".to_owned()]
            }
            None => Vec::new(),
        }
    });
}

/// Lines `key : value` of a frame that both tools print.
fn fields(text: &str) -> Vec<(String, String)> {
    let pair = |line: &str| line.split_once(" : ").map(|(k, v)| (k.trim().into(), v.trim().into()));
    text.lines().filter_map(pair).collect()
}

/// The fields that both know and that are not the same.
fn differences(ours: &str, theirs: &str, but: &[&str]) -> Vec<String> {
    let theirs = fields(theirs);
    let mut found = Vec::new();
    let mut common = 0;
    for (key, value) in fields(ours) {
        let right = theirs.iter().find(|(other, _)| *other == key);
        let Some((_, right)) = right.filter(|_| !but.contains(&key.as_str())) else { continue };
        common += 1;
        if value != *right {
            found.push(format!("{key} is {value}, with mdadm {right}"));
        }
    }
    if common < 12 {
        found.push(format!("only {common} fields are known to both:\n{ours}"));
    }
    found
}

#[test]
fn examine_says_what_mdadm_says() {
    each(|golden| {
        let theirs = golden.text("examine.txt");
        let mut problems = Vec::new();
        for part in theirs.split("### ").skip(1) {
            let (name, theirs) = part.split_once('\n').unwrap();
            let Some(member) = golden.members.iter().find(|path| path.ends_with(name)) else {
                continue;
            };
            let ours = succeed_text(uraid().env("TZ", "UTC").arg("examine").arg(member));
            let differences = differences(&ours, theirs, &[]);
            problems.extend(differences.iter().map(|what| format!("{name}: {what}")));
            let json = succeed(uraid().args(["examine", "--json"]).arg(member));
            problems.extend(json_differences(&serde_json::from_slice(&json).unwrap(), theirs));
        }
        problems
    });
}

/// `examine --json` against the text of mdadm.
fn json_differences(json: &Value, theirs: &str) -> Vec<String> {
    let view = &json[0];
    let theirs = fields(theirs);
    let field = |key: &str| theirs.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str());
    let uuid = field("Array UUID").or(field("UUID"));
    let mut right = vec![
        ("level", field("Raid Level").map(Value::from)),
        ("array_uuid", uuid.map(Value::from)),
        ("slot_count", field("Raid Devices").map(|v| v.parse::<u64>().unwrap().into())),
        ("events", field("Events").map(|v| v.parse::<u64>().unwrap().into())),
        ("clean", field("State").map(|v| (v == "clean").into())),
    ];
    if field("Device UUID").is_some() {
        right.push(("role", field("Device Role").map(Value::from)));
        right.push(("device_uuid", field("Device UUID").map(Value::from)));
        right.push(("name", field("Name").map(Value::from)));
    }
    let wrong = |(key, value): (&str, Option<Value>)| {
        let value = value.unwrap_or(Value::Null);
        (view[key] != value).then(|| format!("json {key} is {}, with mdadm {value}", view[key]))
    };
    right.into_iter().filter_map(wrong).collect()
}

/// `detail --json` against the text of mdadm.
fn detail_json_differences(json: &Value, theirs: &str) -> Vec<String> {
    let theirs = fields(theirs);
    let text = |key: &str| theirs.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str());
    // The first word of a size is KiB, a chunk is like 64K, the rest are counts.
    let number = |key: &str| {
        let word = text(key)?.split_whitespace().next()?;
        Some(word.trim_end_matches('K').parse::<u64>().unwrap())
    };
    let (status, group) = (&json["status"], &json["status"]["groups"][0]);
    let count = |states: &[&str]| {
        let members = group["members"].as_array().unwrap();
        let is_one = |member: &&Value| states.contains(&member["state"].as_str().unwrap());
        Value::from(members.iter().filter(is_one).count())
    };
    let kib = |bytes: &Value| Value::from(bytes.as_u64().unwrap() >> 10);
    let spares = ["spare", "recovering"];
    let pairs = [
        (json["version"].clone(), text("Version").map(Value::from), "Version"),
        (status["level"].clone(), text("Raid Level").map(Value::from), "Raid Level"),
        (status["uuid"].clone(), text("UUID").map(Value::from), "UUID"),
        (json["consistency_policy"].clone(), text("Consistency Policy").map(Value::from), "Policy"),
        (kib(&status["size_bytes"]), number("Array Size").map(Value::from), "Array Size"),
        (kib(&json["component_bytes"]), number("Used Dev Size").map(Value::from), "Used Dev Size"),
        (kib(&status["chunk_bytes"]), number("Chunk Size").map(Value::from), "Chunk Size"),
        (group["slot_count"].clone(), number("Raid Devices").map(Value::from), "Raid Devices"),
        (count(&["in_sync"]), number("Active Devices").map(Value::from), "Active Devices"),
        (count(&spares), number("Spare Devices").map(Value::from), "Spare Devices"),
    ];
    let wrong = |(ours, theirs, key): (Value, Option<Value>, &str)| {
        let theirs = theirs.filter(|theirs| *theirs != ours)?;
        Some(format!("json {key} is {ours}, with mdadm {theirs}"))
    };
    pairs.into_iter().filter_map(wrong).collect()
}

#[test]
fn detail_says_what_mdadm_says() {
    each(|golden| {
        if golden.refusal().is_some() {
            return Vec::new();
        }
        // Theirs is of the outer array alone, as of a member that is an array.
        if golden.name.starts_with("raid50") {
            return Vec::new();
        }
        let theirs = golden.text("detail.txt");
        let output = run(uraid().env("TZ", "UTC").arg("detail").args(&golden.members));
        if !output.status.success() {
            return vec![String::from_utf8_lossy(&output.stderr).trim().to_owned()];
        }
        let ours = String::from_utf8(output.stdout).unwrap();
        // Nothing goes on in a stopped array.
        let ours = ours.replace(" (PENDING)", "");
        // Taken while the array ran: it was active, and stopping it was one more update.
        let was_stopped = golden.manifest["state"] != "dirty";
        let theirs = if was_stopped {
            theirs.replace("State : active", "State : clean")
        } else {
            theirs.replace("State : clean", "State : active, not stopped cleanly, resyncing")
        };
        let mut problems = differences(&ours, &theirs, &["Update Time", "Events"]);
        let json = succeed(uraid().args(["detail", "--json"]).args(&golden.members));
        let json = serde_json::from_slice(&json).unwrap();
        problems.extend(detail_json_differences(&json, &theirs));
        problems
    });
}
