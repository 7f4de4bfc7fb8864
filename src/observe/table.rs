//! One kind of object in memory, with the rule that an older view never replaces a newer one.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    fmt,
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

/// Namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

impl Key {
    /// Namespace and name.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// How long the UID of a deleted object is remembered, so that the late answer to one of our own writes does not bring
/// it back. Longer than any call may take.
const TOMBSTONE: Duration = Duration::from_mins(1);

/// Identity and version of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// UID.
    pub uid: Arc<str>,
    /// `metadata.resourceVersion`.
    pub resource_version: Arc<str>,
}

impl Version {
    /// Is this one newer than `other`? `None`: it cannot be told, since they are no numbers.
    fn newer_than(&self, other: &Self) -> Option<bool> {
        Some(number(&self.resource_version)? > number(&other.resource_version)?)
    }
}

fn number(resource_version: &str) -> Option<u64> {
    resource_version.parse().ok()
}

/// Where a view of an object comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The watch: in order, so to be believed where versions cannot be compared.
    Watch,
    /// A live read or the answer to a write of ours.
    Call,
}

struct Entry<T> {
    version: Version,
    epoch: u64,
    /// `None`: it is there, but counts no longer (a pod that has finished, an object that is being deleted).
    fact: Option<Arc<T>>,
}

/// All objects of one kind, by namespace and name, and by an index of its own choice.
pub struct Table<T> {
    entries: BTreeMap<Key, Entry<T>>,
    index: fn(&T) -> &str,
    /// The facts themselves: to look up each of a thousand pods by its name takes longer than to plan with them.
    by: HashMap<Box<str>, BTreeMap<Key, Arc<T>>>,
    tombstones: VecDeque<(Instant, Arc<str>)>,
    /// UIDs of objects that are gone, and up to which version.
    dead: HashMap<Arc<str>, u64>,
    epoch: u64,
    synced: bool,
}

impl<T> Table<T> {
    /// An empty table. `index` gives the value by which [`Table::by`] finds facts; empty: not indexed.
    pub fn new(index: fn(&T) -> &str) -> Self {
        Self {
            entries: BTreeMap::new(),
            index,
            by: HashMap::new(),
            tombstones: VecDeque::new(),
            dead: HashMap::new(),
            epoch: 0,
            synced: false,
        }
    }

    /// Has a first complete list arrived?
    pub fn synced(&self) -> bool {
        self.synced
    }

    /// The fact of this name.
    pub fn get(&self, key: &Key) -> Option<&T> {
        self.entries.get(key)?.fact.as_deref()
    }

    /// The version of the object of this name.
    pub fn version(&self, key: &Key) -> Option<&Version> {
        self.entries.get(key).map(|entry| &entry.version)
    }

    /// Is an object of this name known, even if it counts no longer?
    pub fn knows(&self, key: &Key) -> bool {
        self.entries.contains_key(key)
    }

    /// All facts of a namespace, by name.
    pub fn of_namespace<'a>(&'a self, namespace: &str) -> impl Iterator<Item = (&'a Key, &'a T)> + use<'a, T> {
        let first = Key::new(namespace, "");
        let namespace = Arc::clone(&first.namespace);
        self.entries
            .range(first..)
            .take_while(move |(key, _)| key.namespace == namespace)
            .filter_map(|(key, entry)| Some((key, entry.fact.as_deref()?)))
    }

    /// All facts.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &T)> {
        self.entries.iter().filter_map(|(key, entry)| Some((key, entry.fact.as_deref()?)))
    }

    /// All facts with this value of the index, by name.
    pub fn by(&self, value: &str) -> impl Iterator<Item = (&Key, &T)> {
        self.by.get(value).into_iter().flatten().map(|(key, fact)| (key, &**fact))
    }

    /// Takes a view of an object, unless what is there is newer. Returns whether it was taken.
    pub fn put(&mut self, key: Key, version: Version, fact: Option<T>, source: Source) -> bool {
        if self
            .dead
            .get(&version.uid)
            .is_some_and(|up_to| number(&version.resource_version).is_none_or(|n| n <= *up_to))
        {
            return false;
        }
        if let Some(entry) = self.entries.get_mut(&key) {
            let older = match version.newer_than(&entry.version) {
                Some(newer) => !newer,
                None => source == Source::Call || version == entry.version,
            };
            if older {
                if entry.version.uid == version.uid {
                    entry.epoch = self.epoch;
                }
                return false;
            }
        }
        self.unindex(&key);
        let fact = fact.map(Arc::new);
        if let Some(fact) = &fact {
            let value = (self.index)(fact);
            if !value.is_empty() {
                self.by.entry(value.into()).or_default().insert(key.clone(), Arc::clone(fact));
            }
        }
        let uid = version.uid.clone();
        let old = self.entries.insert(key, Entry { version, epoch: self.epoch, fact });
        if let Some(old) = old
            && old.version.uid != uid
        {
            self.bury(old.version, None);
        }
        true
    }

    /// The object with this UID is gone; one of the same name with another UID is not. Returns its last fact.
    ///
    /// `version` is what the deletion itself carries, or empty. A later version of the same object is taken again: an
    /// object that no longer matches the selector of a watch is reported as deleted too.
    pub fn delete(&mut self, key: &Key, gone: &Version) -> Option<T> {
        let known = self.entries.get(key).filter(|e| e.version.uid == gone.uid).map(|e| e.version.clone());
        self.bury(gone.clone(), known.as_ref());
        known?;
        self.unindex(key);
        Arc::into_inner(self.entries.remove(key)?.fact?)
    }

    /// A complete list begins.
    pub fn begin(&mut self) {
        self.epoch += 1;
    }

    /// It has ended: what it did not contain, and nobody has put since, is gone. Returns that, to be deleted.
    pub fn finish(&mut self) -> Vec<(Key, Version)> {
        self.synced = true;
        let stale = self.entries.iter().filter(|(_, e)| e.epoch < self.epoch);
        stale.map(|(key, e)| (key.clone(), e.version.clone())).collect()
    }

    /// Which of the `candidates` a live list as of `resource_version` should have contained, and did not: they are
    /// gone. What is newer than the list is not.
    pub fn unlisted(&self, candidates: &[Key], seen: &BTreeSet<Key>, resource_version: &str) -> Vec<(Key, Version)> {
        let Some(listed) = number(resource_version) else { return Vec::new() };
        let missing = candidates.iter().filter(|key| !seen.contains(key)).filter_map(|key| {
            let version = &self.entries.get(key)?.version;
            (number(&version.resource_version)? <= listed).then(|| (key.clone(), version.clone()))
        });
        missing.collect()
    }

    fn unindex(&mut self, key: &Key) {
        let Some(value) = self.entries.get(key).and_then(|e| e.fact.as_deref()).map(|f| (self.index)(f)) else {
            return;
        };
        if let Some(facts) = self.by.get_mut(value) {
            facts.remove(key);
            if facts.is_empty() {
                self.by.remove(value);
            }
        }
    }

    fn bury(&mut self, gone: Version, known: Option<&Version>) {
        let now = Instant::now();
        while let Some((at, _)) = self.tombstones.front()
            && now.duration_since(*at) > TOMBSTONE
            && let Some((_, uid)) = self.tombstones.pop_front()
        {
            self.dead.remove(&uid);
        }
        let versions = [number(&gone.resource_version), known.and_then(|k| number(&k.resource_version))];
        let up_to = versions.into_iter().flatten().max().unwrap_or(u64::MAX);
        if self.dead.insert(gone.uid.clone(), up_to).is_none() {
            self.tombstones.push_back((now, gone.uid));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(uid: &str, rv: &str) -> Version {
        Version { uid: uid.into(), resource_version: rv.into() }
    }

    fn table() -> Table<&'static str> {
        Table::new(|fact| fact.split('/').next().unwrap_or_default())
    }

    #[tokio::test(start_paused = true)]
    async fn older_never_replaces_newer() {
        let (mut t, key) = (table(), Key::new("ns", "a"));
        assert!(t.put(key.clone(), version("u", "10"), Some("x/new"), Source::Call));
        assert!(!t.put(key.clone(), version("u", "9"), Some("x/old"), Source::Watch));
        assert!(!t.put(key.clone(), version("u", "10"), Some("x/same"), Source::Watch));
        assert_eq!(t.get(&key), Some(&"x/new"));
        assert!(t.put(key.clone(), version("u", "100"), Some("y/newer"), Source::Watch));
        assert_eq!(t.by("x").count(), 0);
        assert_eq!(t.by("y").count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn versions_that_are_no_numbers_are_believed_from_the_watch_only() {
        let (mut t, key) = (table(), Key::new("ns", "a"));
        assert!(t.put(key.clone(), version("u", "abc"), Some("1"), Source::Call));
        assert!(!t.put(key.clone(), version("u", "abd"), Some("2"), Source::Call));
        assert!(t.put(key.clone(), version("u", "abb"), Some("3"), Source::Watch));
        assert_eq!(t.get(&key), Some(&"3"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_deletion_means_one_uid() {
        let (mut t, key) = (table(), Key::new("ns", "a"));
        t.put(key.clone(), version("new", "10"), Some("x"), Source::Call);
        assert_eq!(t.delete(&key, &version("old", "11")), None);
        assert_eq!(t.get(&key), Some(&"x"));
        assert_eq!(t.delete(&key, &version("new", "12")), Some("x"));
        assert!(!t.put(key.clone(), version("new", "11"), Some("late answer"), Source::Call));
        assert_eq!(t.get(&key), None);
        tokio::time::advance(TOMBSTONE * 2).await;
        t.delete(&key, &version("other", ""));
        assert_eq!(t.tombstones.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_left_the_selection_can_come_back() {
        let (mut t, key) = (table(), Key::new("ns", "a"));
        t.put(key.clone(), version("u", "10"), Some("x"), Source::Watch);
        t.delete(&key, &version("u", "11"));
        assert!(t.put(key.clone(), version("u", "12"), Some("y"), Source::Watch));
        assert_eq!(t.get(&key), Some(&"y"));
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_made_again_under_the_same_name_replaces_the_old_one_for_good() {
        let (mut t, key) = (table(), Key::new("ns", "a"));
        t.put(key.clone(), version("first", "10"), Some("1"), Source::Watch);
        assert!(t.put(key.clone(), version("second", "20"), Some("2"), Source::Watch));
        assert!(!t.put(key.clone(), version("first", "9"), Some("3"), Source::Call));
        assert_eq!(t.get(&key), Some(&"2"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_list_drops_what_it_does_not_contain_but_not_what_came_meanwhile() {
        let mut t = table();
        let [a, b, c] = ["a", "b", "c"].map(|n| Key::new("ns", n));
        t.put(a.clone(), version("a", "1"), Some("a"), Source::Watch);
        t.put(b.clone(), version("b", "2"), Some("b"), Source::Watch);
        t.begin();
        t.put(a.clone(), version("a", "1"), Some("a"), Source::Watch);
        t.put(c.clone(), version("c", "9"), Some("c"), Source::Call);
        assert_eq!(t.finish(), [(b, version("b", "2"))]);
        assert!(t.get(&a).is_some() && t.get(&c).is_some() && t.synced());
        assert_eq!(t.of_namespace("ns").count(), 3);
        assert_eq!(t.of_namespace("n").count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_live_list_tells_what_it_should_have_contained() {
        let mut t = table();
        let [a, b] = ["a", "b"].map(|n| Key::new("ns", n));
        t.put(a.clone(), version("a", "5"), Some("a"), Source::Watch);
        t.put(b.clone(), version("b", "9"), Some("b"), Source::Call);
        assert_eq!(t.unlisted(&[a.clone(), b.clone()], &BTreeSet::new(), "7"), [(a.clone(), version("a", "5"))]);
        assert_eq!(t.unlisted(&[a.clone(), b], &BTreeSet::from([a]), "8"), []);
    }
}
