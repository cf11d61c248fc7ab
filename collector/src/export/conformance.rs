//! The rules of OpenTelemetry for profiles, as far as messages can break them: those of the
//! conformance checker of its profiling group, all of its options on, and what it leaves open:
//! entries of every table once, and samples once.

use crate::otlp::messages::{
    AnyValue, Attribute, Dictionary, Function, Link, Location, Mapping, Profile, ProfileId,
    ResourceProfiles, Sample, Stack, ValueType,
};
use crate::otlp::wire::ExportProfilesServiceRequest;
use prost::Message;
use std::collections::HashSet;
use std::fmt::Debug;

/// Profiles with their samples.
type Profiles = Vec<(Profile, Vec<Sample>)>;

/// A request, decoded.
pub struct Decoded {
    /// Its resources, with the profiles of each.
    pub resources: Vec<(ResourceProfiles, Profiles)>,
    /// Its tables.
    pub tables: Dictionary,
}

/// What breaks a rule, in sentences.
pub fn problems(request: &ExportProfilesServiceRequest) -> (Decoded, Vec<String>) {
    let mut check = Check::default();
    let tables = Dictionary::decode(request.dictionary.clone()).expect("a dictionary");
    let mut resources = Vec::new();
    check.that(!request.resource_profiles.is_empty(), "no resource");
    let mut ids = HashSet::new();
    for bytes in &request.resource_profiles {
        let resource = ResourceProfiles::decode(bytes.clone()).expect("a resource");
        check.resource(&resource);
        let mut profiles = Vec::new();
        for bytes in resource.scope_profiles.iter().flat_map(|of| &of.profiles) {
            let profile = Profile::decode(bytes.clone()).expect("a profile");
            let id = ProfileId::decode(bytes.clone()).expect("an id").profile_id;
            check.that(id.len() == 16, "an id has not 16 bytes");
            check.that(ids.insert(id), "an id is there twice");
            let samples = profile.samples.iter();
            let samples = samples.map(|bytes| Sample::decode(bytes.clone()).expect("a sample"));
            let samples: Vec<Sample> = samples.collect();
            check.profile(&profile, &samples, &tables);
            profiles.push((profile, samples));
        }
        resources.push((resource, profiles));
    }
    check.tables(&tables);
    check.references(&resources, &tables);
    (Decoded { resources, tables }, check.problems)
}

#[derive(Default)]
struct Check {
    problems: Vec<String>,
}

impl Check {
    fn that(&mut self, holds: bool, else_: &str) {
        if !holds {
            self.problems.push(else_.to_owned());
        }
    }

    fn index(&mut self, index: i32, size: usize, what: &str) {
        let within = usize::try_from(index).is_ok_and(|at| at < size);
        self.that(
            within,
            &format!("{what} {index} is not in its table of {size}"),
        );
    }

    fn resource(&mut self, resource: &ResourceProfiles) {
        self.that(
            !resource.scope_profiles.is_empty(),
            "a resource has no scope",
        );
        let empty = |of: &crate::otlp::messages::ScopeProfiles| of.profiles.is_empty();
        self.that(
            !resource.scope_profiles.iter().any(empty),
            "a scope has no profile",
        );
        let attributes = resource.resource.iter().flat_map(|of| &of.attributes);
        let mut keys = HashSet::new();
        for pair in attributes {
            self.that(!pair.key.is_empty(), "an attribute has no key");
            self.that(
                pair.value.is_some(),
                "an attribute of a resource has no value",
            );
            self.that(
                keys.insert(&pair.key),
                "an attribute of a resource is there twice",
            );
        }
        self.that(
            keys.contains(&"service.name".to_owned()),
            "a resource has no service",
        );
    }

    fn profile(&mut self, profile: &Profile, samples: &[Sample], tables: &Dictionary) {
        self.that(!samples.is_empty(), "a profile has no sample");
        self.that(profile.time_unix_nano > 0, "a profile has no time");
        self.that(profile.duration_nano > 0, "a profile has no length");
        self.that(profile.period > 0, "a profile has no period");
        for of in [profile.sample_type, profile.period_type] {
            let of: ValueType = of.unwrap_or_default();
            self.index(of.type_strindex, tables.string_table.len(), "type");
            self.index(of.unit_strindex, tables.string_table.len(), "unit");
            self.that(of.type_strindex > 0, "a profile has a type without a name");
        }
        let mut known = HashSet::new();
        for sample in samples {
            self.index(sample.stack_index, tables.stack_table.len(), "stack");
            self.index(sample.link_index, tables.link_table.len(), "link");
            self.attributes(&sample.attribute_indices, tables);
            self.that(
                sample.values.len() == 1 && sample.timestamps_unix_nano.is_empty(),
                "a sample is not one value",
            );
            let mut of = sample.attribute_indices.clone();
            of.sort_unstable();
            self.that(
                known.insert((sample.stack_index, of)),
                "a sample is there twice",
            );
        }
    }

    fn attributes(&mut self, indices: &[i32], tables: &Dictionary) {
        let mut keys = HashSet::new();
        for &index in indices {
            self.index(index, tables.attribute_table.len(), "attribute");
            let attribute = tables.attribute_table.get(index as usize);
            let key = attribute.map(|attribute| attribute.key_strindex);
            self.that(keys.insert(key), "an attribute is there twice");
        }
    }

    /// The first entry is what is not set, and no two are the same.
    fn table<T: Default + PartialEq + Debug>(&mut self, table: &[T], what: &str) {
        let first = table.first();
        self.that(
            first == Some(&T::default()),
            &format!("the first {what} is {first:?}"),
        );
        let mut texts = HashSet::new();
        for entry in table {
            let is_new = texts.insert(format!("{entry:?}"));
            self.that(is_new, &format!("{what} {entry:?} is there twice"));
        }
    }

    fn tables(&mut self, tables: &Dictionary) {
        let strings = tables.string_table.len();
        self.table::<String>(&tables.string_table, "string");
        self.table::<Mapping>(&tables.mapping_table, "mapping");
        self.table::<Location>(&tables.location_table, "location");
        self.table::<Function>(&tables.function_table, "function");
        self.table::<Link>(&tables.link_table, "link");
        self.table::<Attribute>(&tables.attribute_table, "attribute");
        self.table::<Stack>(&tables.stack_table, "stack");
        for mapping in &tables.mapping_table {
            self.index(mapping.filename_strindex, strings, "file");
            self.attributes(&mapping.attribute_indices, tables);
        }
        for location in &tables.location_table {
            self.index(
                location.mapping_index,
                tables.mapping_table.len(),
                "mapping",
            );
            self.attributes(&location.attribute_indices, tables);
            for line in &location.lines {
                self.index(line.function_index, tables.function_table.len(), "function");
                self.that(line.line >= 0, "a line is negative");
            }
        }
        for of in &tables.function_table {
            for index in [
                of.name_strindex,
                of.system_name_strindex,
                of.filename_strindex,
            ] {
                self.index(index, strings, "string");
            }
            self.that(of.start_line >= 0, "a first line is negative");
        }
        for attribute in &tables.attribute_table {
            self.index(attribute.key_strindex, strings, "key");
            let named = attribute.key_strindex > 0 && attribute.value != Some(AnyValue::default());
            let is_first = *attribute == Attribute::default();
            self.that(named || is_first, "an attribute has no key or value");
        }
        for &index in tables
            .stack_table
            .iter()
            .flat_map(|of| &of.location_indices)
        {
            self.index(index, tables.location_table.len(), "location");
            self.that(index > 0, "a stack has a location that is not set");
        }
    }

    /// Every entry is referred to.
    fn references(&mut self, resources: &[(ResourceProfiles, Profiles)], of: &Dictionary) {
        let (mut strings, mut attributes) = (HashSet::from([0]), HashSet::from([0]));
        let (mut stacks, mut links) = (HashSet::from([0]), HashSet::from([0]));
        for (profile, samples) in resources.iter().flat_map(|(_, profiles)| profiles) {
            for named in [profile.sample_type, profile.period_type]
                .into_iter()
                .flatten()
            {
                strings.extend([named.type_strindex, named.unit_strindex]);
            }
            stacks.extend(samples.iter().map(|sample| sample.stack_index));
            links.extend(samples.iter().map(|sample| sample.link_index));
            attributes.extend(samples.iter().flat_map(|sample| &sample.attribute_indices));
        }
        let (mut mappings, mut functions) = (HashSet::from([0]), HashSet::from([0]));
        let mut locations = HashSet::from([0]);
        locations.extend(of.stack_table.iter().flat_map(|of| &of.location_indices));
        for location in &of.location_table {
            mappings.insert(location.mapping_index);
            attributes.extend(&location.attribute_indices);
            functions.extend(location.lines.iter().map(|line| line.function_index));
        }
        for mapping in &of.mapping_table {
            strings.insert(mapping.filename_strindex);
            attributes.extend(&mapping.attribute_indices);
        }
        for of in &of.function_table {
            strings.extend([
                of.name_strindex,
                of.system_name_strindex,
                of.filename_strindex,
            ]);
        }
        strings.extend(of.attribute_table.iter().map(|of| of.key_strindex));
        for (what, used, size) in [
            ("string", strings, of.string_table.len()),
            ("attribute", attributes, of.attribute_table.len()),
            ("mapping", mappings, of.mapping_table.len()),
            ("function", functions, of.function_table.len()),
            ("location", locations, of.location_table.len()),
            ("stack", stacks, of.stack_table.len()),
            ("link", links, of.link_table.len()),
        ] {
            let unused: Vec<usize> = (0..size)
                .filter(|at| !used.contains(&(*at as i32)))
                .collect();
            self.that(
                unused.is_empty(),
                &format!("{what} {unused:?} is used by nothing"),
            );
        }
    }
}
