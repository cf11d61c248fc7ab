//! Parses the JSON that runtimes write about containers.
//!
//! Only the needed values are kept, and only as much of each as a label may hold; the rest is
//! skipped without using memory. If we cut an answer off, the values parsed until then still count:
//! a container with a million labels still has a name, because the name comes first.

use super::{Error, Metadata, clean};
use profile::key;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use std::fmt;

/// Longest name of a field or label that is looked at. Unit: bytes. Kubernetes admits 317.
const NAME_BYTES_MAX: usize = 320;

/// Longest text that is read as JSON within JSON. Unit: bytes.
const INNER_BYTES_MAX: usize = 64 << 10;

/// Labels by which Kubernetes' own tools mark the pod of a container, on Docker and in bundles.
const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
const NAME_IN_POD: &str = "io.kubernetes.container.name";

/// A parsed answer.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ContainerAnswer {
    /// Id of the container.
    pub id: Option<Box<str>>,
    /// Data for labels.
    pub metadata: Metadata,
    /// Id of the pod, to be asked for next.
    pub pod_id: Option<Box<str>>,
}

/// A container as Docker and Podman show it (`GET /containers/ID/json`), and as Docker keeps it
/// (`config.v2.json`). `cut`: bytes are missing at the end.
///
/// # Errors
/// [`Error::Malformed`] and [`Error::TooLong`].
pub fn inspected(bytes: &[u8], cut: bool, chosen: &[Box<str>]) -> Result<ContainerAnswer, Error> {
    read(bytes, cut, Part::Inspected, chosen, |found| {
        found.id.is_some() && found.metadata.container_name.is_some()
    })
}

/// A pod as Podman shows it: its name, and its labels.
///
/// # Errors
/// [`Error::Malformed`] and [`Error::TooLong`].
pub fn pod(bytes: &[u8], cut: bool, chosen: &[Box<str>]) -> Result<ContainerAnswer, Error> {
    read(bytes, cut, Part::Pod, chosen, |found| {
        found.metadata.pod.is_some()
    })
}

/// The entry of one container in the list that Podman's storage keeps of all (`containers.json`).
///
/// # Errors
/// [`Error::Malformed`] and [`Error::TooLong`].
pub fn stored(bytes: &[u8], cut: bool, id: &str) -> Result<Option<ContainerAnswer>, Error> {
    let mut found = None;
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let read = List {
        id,
        found: &mut found,
    }
    .deserialize(&mut json);
    complete(read, cut, found.is_some())?;
    Ok(found)
}

/// Parses the annotations of a bundle's `config.json` about a container in a pod.
///
/// # Errors
/// [`Error::Malformed`] and [`Error::TooLong`].
pub fn bundle(bytes: &[u8], cut: bool, chosen: &[Box<str>]) -> Result<ContainerAnswer, Error> {
    read(bytes, cut, Part::Bundle, chosen, |found| {
        !found.metadata.is_empty()
    })
}

/// Labels of an image, as an additional part of a runtime's verbose status.
///
/// # Errors
/// [`Error::Malformed`].
pub fn image_info(bytes: &[u8], chosen: &[Box<str>]) -> Result<ContainerAnswer, Error> {
    read(bytes, false, Part::ImageInfo, chosen, |_| true)
}

/// Reads an answer that is one object. `useful`: whether it says enough should the rest be missing.
fn read(
    bytes: &[u8],
    cut: bool,
    part: Part,
    chosen: &[Box<str>],
    useful: fn(&ContainerAnswer) -> bool,
) -> Result<ContainerAnswer, Error> {
    let mut found = ContainerAnswer::default();
    let read = Walk {
        part,
        chosen,
        found: &mut found,
    }
    .all(bytes);
    complete(read, cut, useful(&found))?;
    Ok(found)
}

/// Whether what was read may be used.
fn complete(read: serde_json::Result<()>, cut: bool, useful: bool) -> Result<(), Error> {
    match read {
        Ok(()) => Ok(()),
        Err(error) if cut && error.is_eof() => match useful {
            true => Ok(()),
            false => Err(Error::TooLong),
        },
        // The error quotes nothing of the answer but where it stands.
        Err(error) => Err(Error::Malformed(
            format!("line {}, column {}", error.line(), error.column()).into(),
        )),
    }
}

/// The kind of object in an answer, which determines the meaning of its fields.
#[derive(Clone, Copy)]
enum Part {
    /// A container as Docker and Podman show it.
    Inspected,
    /// How a container was started, or an image is to be.
    Config,
    /// Labels or annotations, with the prefix of those that are chosen.
    Labels(&'static str),
    /// A pod as Podman shows it.
    Pod,
    /// A bundle's `config.json`.
    Bundle,
    /// Annotations that containerd and CRI-O write into bundles.
    Annotations,
    /// What a runtime reports about an image besides its status.
    ImageInfo,
    /// A container in the list of Podman's storage.
    Stored,
    /// Podman's metadata, as JSON within JSON.
    StoredMetadata,
}

/// Goes through an object; `null` is one without fields.
struct Walk<'a> {
    part: Part,
    chosen: &'a [Box<str>],
    found: &'a mut ContainerAnswer,
}

impl Walk<'_> {
    /// Reads bytes that are the object and nothing else.
    fn all(self, bytes: &[u8]) -> serde_json::Result<()> {
        let mut json = serde_json::Deserializer::from_slice(bytes);
        self.deserialize(&mut json)?;
        json.end()
    }

    /// An object within this one.
    fn within(&mut self, part: Part) -> Walk<'_> {
        Walk {
            part,
            chosen: self.chosen,
            found: self.found,
        }
    }

    /// Reads the value of a field from `map`.
    fn field<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        let metadata = &mut self.found.metadata;
        match (self.part, name) {
            (Part::Inspected, "Id" | "ID") | (Part::Stored, "id") => {
                self.found.id = map.next_value_seed(Clean)?;
            }
            (Part::Inspected, "Name") => {
                let name = map.next_value_seed(Clean)?;
                let name = name.and_then(|name| clean(name.strip_prefix('/').unwrap_or(&name)));
                // Where it is in a pod, its name there says more.
                if metadata.container_name.is_none() {
                    metadata.container_name = name;
                }
            }
            (Part::Annotations, "io.kubernetes.cri.container-name")
            | (Part::StoredMetadata, "name") => {
                metadata.container_name = map.next_value_seed(Clean)?;
            }
            // The first is Podman's own word.
            (Part::Inspected, "ImageName")
            | (
                Part::Annotations,
                "io.kubernetes.cri.image-name" | "io.kubernetes.cri-o.ImageName",
            )
            | (Part::StoredMetadata, "image-name") => {
                metadata.image = map.next_value_seed(Clean)?;
            }
            (Part::Config, "Image") => {
                let image = map.next_value_seed(Clean)?;
                if metadata.image.is_none() {
                    metadata.image = image;
                }
            }
            // Podman's own word.
            (Part::Inspected, "Pod") => self.found.pod_id = map.next_value_seed(Clean)?,
            (Part::Pod, "Name") | (Part::Annotations, "io.kubernetes.cri.sandbox-name") => {
                metadata.pod = map.next_value_seed(Clean)?;
            }
            (Part::Annotations, "io.kubernetes.cri.sandbox-namespace") => {
                metadata.namespace = map.next_value_seed(Clean)?;
            }
            (Part::Inspected, "Config") | (Part::ImageInfo, "config") => {
                map.next_value_seed(self.within(Part::Config))?;
            }
            (Part::Config, "Labels" | "labels") => {
                map.next_value_seed(self.within(Part::Labels(key::CONTAINER_LABEL)))?;
            }
            (Part::Pod, "Labels") => {
                map.next_value_seed(self.within(Part::Labels(key::POD_LABEL)))?;
            }
            (Part::Bundle, "annotations") => {
                map.next_value_seed(self.within(Part::Annotations))?;
            }
            (Part::ImageInfo, "imageSpec") => {
                map.next_value_seed(self.within(Part::ImageInfo))?;
            }
            (Part::Stored, "metadata") => {
                let Text(inner) = map.next_value_seed(TextUpTo(INNER_BYTES_MAX))?;
                if !inner.is_empty() {
                    let read = self.within(Part::StoredMetadata).all(inner.as_bytes());
                    read.map_err(A::Error::custom)?;
                }
            }
            (Part::Labels(prefix), _) => self.label(prefix, name, map)?,
            (Part::Annotations, _) => self.label(key::CONTAINER_LABEL, name, map)?,
            _ => skip(map)?,
        }
        Ok(())
    }

    /// Reads a label or annotation that is chosen, or known to name the pod.
    fn label<'de, A: MapAccess<'de>>(
        &mut self,
        prefix: &str,
        name: &str,
        map: &mut A,
    ) -> Result<(), A::Error> {
        let chosen = self.chosen.iter().any(|chosen| **chosen == *name);
        let known = matches!(name, POD_NAME | POD_NAMESPACE | NAME_IN_POD);
        if !chosen && !known {
            return skip(map);
        }
        let Some(value) = map.next_value_seed(Clean)? else {
            return Ok(());
        };
        let metadata = &mut self.found.metadata;
        if chosen {
            metadata.add_label([prefix, name].concat().into(), value.clone());
        }
        match name {
            POD_NAME => metadata.pod = Some(value),
            POD_NAMESPACE => metadata.namespace = Some(value),
            NAME_IN_POD => metadata.container_name = Some(value),
            _ => {}
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(Text(name)) = map.next_key_seed(TextUpTo(NAME_BYTES_MAX))? {
            self.field(&name, &mut map)?;
        }
        Ok(())
    }
}

/// Finds one container in a list of all.
struct List<'a> {
    id: &'a str,
    found: &'a mut Option<ContainerAnswer>,
}

impl<'de> DeserializeSeed<'de> for List<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for List<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        loop {
            let mut found = ContainerAnswer::default();
            let entry = Walk {
                part: Part::Stored,
                chosen: &[],
                found: &mut found,
            };
            if list.next_element_seed(entry)?.is_none() {
                return Ok(());
            }
            if self.found.is_none() && found.id.as_deref() == Some(self.id) {
                *self.found = Some(found);
            }
        }
    }
}

/// Text of bounded length; empty for `null` and for text that is longer.
struct TextUpTo(usize);

struct Text(String);

impl<'de> DeserializeSeed<'de> for TextUpTo {
    type Value = Text;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Text, D::Error> {
        from.deserialize_any(self)
    }
}

impl Visitor<'_> for TextUpTo {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_unit<E>(self) -> Result<Text, E> {
        Ok(Text(String::new()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Text, E> {
        Ok(Text(match text.len() <= self.0 {
            true => text.to_owned(),
            false => String::new(),
        }))
    }
}

/// A text as a label may have it.
struct Clean;

impl<'de> DeserializeSeed<'de> for Clean {
    type Value = Option<Box<str>>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl Visitor<'_> for Clean {
    type Value = Option<Box<str>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(clean(text))
    }
}

fn skip<'de, A: MapAccess<'de>>(map: &mut A) -> Result<(), A::Error> {
    map.next_value::<IgnoredAny>().map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn chosen(names: &[&str]) -> Vec<Box<str>> {
        names.iter().map(|&name| name.into()).collect()
    }

    /// Compares the labels as `key=value`, one each line.
    fn check(found: &ContainerAnswer, expected: &[&str]) {
        let pairs = found.metadata.pairs();
        let pairs: Vec<String> = pairs.map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(pairs, expected);
    }

    #[test]
    fn docker_and_its_file_say_name_image_and_labels() {
        for id in ["Id", "ID"] {
            let json = format!(
                r#"{{"{id}": "{ID}", "Created": "2026-11-21", "Args": ["a", {{"Name": "no"}}],
                "Image": "sha256:aa", "Name": "/web-1", "Config": {{"Env": ["Image=x"],
                "Image": "registry.example:5000/team/web:1.4", "Labels":
                {{"team": "blue", "other": "x"}}}}}}"#
            );
            let found = inspected(json.as_bytes(), false, &chosen(&["team"])).unwrap();
            assert_eq!(found.id.as_deref(), Some(ID));
            check(
                &found,
                &[
                    "container_name=web-1",
                    "image=registry.example:5000/team/web:1.4",
                    "container.label/team=blue",
                ],
            );
        }
    }

    #[test]
    fn docker_under_kubernetes_says_the_pod() {
        let json = r#"{"Config": {"Image": "web", "Labels": {
            "io.kubernetes.pod.name": "web-0", "io.kubernetes.pod.namespace": "shop",
            "io.kubernetes.container.name": "server"}}, "Name": "/k8s_server_web-0_shop_1_0"}"#;
        let found = inspected(json.as_bytes(), false, &[]).unwrap();
        check(
            &found,
            &[
                "container_name=server",
                "image=web",
                "pod=web-0",
                "namespace=shop",
            ],
        );
    }

    #[test]
    fn podman_says_image_name_and_pod() {
        let json = format!(
            r#"{{"Id": "{ID}", "Name": "web", "ImageName": "localhost/web:1", "Pod": "abc",
            "Config": {{"Image": "sha256:1", "Labels": null}}}}"#
        );
        let found = inspected(json.as_bytes(), false, &[]).unwrap();
        check(&found, &["container_name=web", "image=localhost/web:1"]);
        assert_eq!(found.pod_id.as_deref(), Some("abc"));
        let json = br#"{"Id": "abc", "Name": "shop", "Labels": {"app": "web"}}"#;
        let found = pod(json, false, &chosen(&["app"])).unwrap();
        check(&found, &["pod=shop", "pod.label/app=web"]);
    }

    #[test]
    fn podmans_storage_lists_all_containers() {
        let json = format!(
            r#"[{{"id": "{}", "metadata": "{{\"name\":\"other\"}}"}}, {{"id": "{ID}", "names":
            ["web"], "metadata": "{{\"image-name\":\"docker.io/library/web:1\",\"name\":\"web\"}}"}}]"#,
            ID.replace('0', "f")
        );
        let found = stored(json.as_bytes(), false, ID).unwrap().unwrap();
        check(
            &found,
            &["container_name=web", "image=docker.io/library/web:1"],
        );
        assert_eq!(stored(json.as_bytes(), false, "0123").unwrap(), None);
        assert_eq!(stored(b"[]", false, ID).unwrap(), None);
    }

    #[test]
    fn bundles_have_annotations() {
        let json = br#"{"ociVersion": "1.1.0", "process": {"args": ["x"]}, "annotations": {
            "io.kubernetes.cri.container-name": "server", "io.kubernetes.cri.image-name":
            "docker.io/library/web:1", "io.kubernetes.cri.sandbox-name": "web-0",
            "io.kubernetes.cri.sandbox-namespace": "shop", "team": "blue"}, "linux": {}}"#;
        let found = bundle(json, false, &chosen(&["team"])).unwrap();
        let expected = [
            "container_name=server",
            "image=docker.io/library/web:1",
            "pod=web-0",
            "namespace=shop",
            "container.label/team=blue",
        ];
        check(&found, &expected);
        let json = br#"{"annotations": {"io.kubernetes.container.name": "server",
            "io.kubernetes.pod.name": "web-0", "io.kubernetes.pod.namespace": "shop",
            "io.kubernetes.cri-o.ImageName": "docker.io/library/web:1"}}"#;
        let found = bundle(json, false, &[]).unwrap();
        check(&found, &expected[..4]);
    }

    #[test]
    fn images_have_labels() {
        let json = br#"{"chainID": "x", "imageSpec": {"config": {"Labels": {"team": "blue"}}}}"#;
        let found = image_info(json, &chosen(&["team"])).unwrap();
        check(&found, &["container.label/team=blue"]);
    }

    #[test]
    fn an_answer_that_was_cut_tells_what_stood_before() {
        let labels = "\"l\": \"v\", ".repeat(1000);
        let json = format!(r#"{{"Id": "{ID}", "Name": "/web", "Config": {{"Labels": {{{labels}"#);
        let found = inspected(json.as_bytes(), true, &[]).unwrap();
        check(&found, &["container_name=web"]);
        let error = inspected(&json.as_bytes()[..60], true, &[]).unwrap_err();
        assert!(matches!(error, Error::TooLong), "{error}");
        let error = inspected(json.as_bytes(), false, &[]).unwrap_err();
        assert!(matches!(error, Error::Malformed(_)), "{error}");
    }

    #[test]
    fn values_are_bounded_and_plain() {
        let huge = "x".repeat(1 << 20);
        let json = format!(
            r#"{{"Id": "{ID}", "Name": "/evil\u001b[31m;\n\"<b>\u202e", "Config": {{"Image": "{huge}",
            "Labels": {{"team": "{huge}", "{huge}": "x", "empty": "", "team": "again"}}}}}}"#
        );
        let found = inspected(json.as_bytes(), false, &chosen(&["team", "empty"])).unwrap();
        let name = found.metadata.container_name.as_deref();
        assert_eq!(name, Some("evil\u{fffd}[31m;\u{fffd}\"<b>\u{fffd}"));
        let image = found.metadata.image.as_deref().unwrap();
        assert!(image.len() <= super::super::VALUE_BYTES_MAX && image.ends_with('…'));
        assert_eq!(found.metadata.labels.len(), 1);
    }

    #[test]
    fn too_many_chosen_labels_are_left_out_and_counted() {
        let names: Vec<String> = (0..100).map(|n| format!("label-{n}")).collect();
        let value = "v".repeat(200);
        let labels: Vec<String> = names
            .iter()
            .map(|n| format!("\"{n}\": \"{value}\""))
            .collect();
        let json = format!(r#"{{"Config": {{"Labels": {{{}}}}}}}"#, labels.join(", "));
        let chosen: Vec<Box<str>> = names.iter().map(|name| name.as_str().into()).collect();
        let found = inspected(json.as_bytes(), false, &chosen).unwrap();
        let kept = found.metadata.labels.len() as u64;
        assert_eq!(kept + found.metadata.labels_cut, 100);
        assert!((20..60).contains(&kept), "{kept}");
    }

    #[test]
    fn what_is_not_such_an_answer_is_refused() {
        let deep = "[".repeat(100_000);
        for json in [
            "",
            "x",
            "7",
            "\"text\"",
            "[]",
            "{",
            "{} {}",
            r#"{"Name": 7}"#,
            &deep,
        ] {
            let error = inspected(json.as_bytes(), false, &[]);
            assert!(matches!(error, Err(Error::Malformed(_))), "{json:?}");
        }
        let found = inspected(b"{}", false, &[]).unwrap();
        assert_eq!(found, ContainerAnswer::default());
    }
}
