use super::*;

fn decision(url: &str, rules: Rules, api_server: &[(&str, Option<u16>)]) -> (Decision, Url) {
    let url = Url::parse(url).unwrap();
    let api_server = api_server.iter().map(|(a, p)| (a.parse().unwrap(), *p)).collect();
    (Decision::new(Arc::new(rules), api_server, &url), url)
}

fn allowed(url: &str, rules: &Rules) -> bool {
    let server = [("10.96.0.1", None), ("192.0.2.7", Some(6443)), ("2001:db8::7", Some(6443))];
    let (decision, url) = decision(url, rules.clone(), &server);
    decision.allows(literal(&url).unwrap_or_else(|| panic!("{url} has no literal address")))
}

fn networks(texts: &[&str]) -> Vec<Network> {
    texts.iter().map(|t| t.parse().unwrap()).collect()
}

/// Every range that is refused, in every spelling that reaches it.
#[test]
fn refused_unless_listed_in_any_spelling() {
    let (none, tally) = (Rules::default(), tally::Tally::new("addresses that hooks may not call"));
    for url in [
        // Loopback: decimal, octal, hexadecimal, short, mixed, with a dot at the end, percent-encoded, full width.
        "http://127.0.0.1/",
        "http://127.9.9.9/",
        "http://2130706433/",
        "http://017700000001/",
        "http://0x7f000001/",
        "http://127.1/",
        "http://0x7f.1/",
        "http://0177.0.0.1/",
        "http://127.0.0.1./",
        "http://%31%32%37.0.0.1/",
        "http://\u{ff11}\u{ff12}\u{ff17}.0.0.1/",
        "http://[::1]/",
        "http://[0:0:0:0:0:0:0:1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://[::127.0.0.1]/",
        "http://[64:ff9b::127.0.0.1]/",
        "http://[64:ff9b:1::7f00:1]/",
        "http://[2002:7f00:1::]/",
        "http://[::ffff:0:127.0.0.1]/",
        "http://[2001:0:0:0:0:0:80ff:fffe]/",
        "http://[2001:db8::5efe:127.0.0.1]/",
        "http://[2001:db8::200:5efe:127.0.0.1]/",
        // Unspecified.
        "http://0.0.0.0/",
        "http://0/",
        "http://0.1.2.3/",
        "http://[::]/",
        "http://[::ffff:0.0.0.0]/",
        // Link-local and metadata services.
        "http://169.254.169.254/latest",
        "http://2852039166/",
        "http://0xa9.0xfe.0251.254/",
        "http://169.254.1.1/",
        "http://[fe80::1]/",
        "http://[febf::1]/",
        "http://[fd00:ec2::254]/",
        "http://[fd20:ce::254]/",
        "http://[::ffff:169.254.169.254]/",
        "http://[64:ff9b::a9fe:a9fe]/",
        "http://[2002:a9fe:a9fe::1]/",
        "https://100.100.100.200/",
        "https://168.63.129.16/",
        "https://192.0.0.192/",
        "http://169.254.170.2/",
        // Multicast and broadcast.
        "http://224.0.0.1/",
        "http://239.1.1.1/",
        "http://255.255.255.255/",
        "http://4294967295/",
        "http://[ff02::1]/",
        // The API server: its Service on any port, an endpoint on its own.
        "https://10.96.0.1/",
        "http://10.96.0.1:8080/",
        "https://0x0a600001/",
        "https://[::ffff:10.96.0.1]/",
        "https://192.0.2.7:6443/",
        "https://3221225991:6443/",
        "https://[64:ff9b::c000:207]:6443/",
        "https://[2001:db8::7]:6443/",
    ] {
        tally.points(1);
        tally.checks(3);
        assert!(!allowed(url, &none), "{url}");
        // A network around everything opens nothing.
        assert!(!allowed(url, &Rules { allow_networks: networks(&["0.0.0.0/0", "::/0"]), ..none.clone() }), "{url}");
        let hosts = ["*.test".parse().unwrap()].to_vec();
        assert!(!allowed(url, &Rules { allow_hosts: hosts, ..none.clone() }), "{url}");
    }
    for url in [
        "http://10.0.0.1/",
        "http://192.0.2.7/",
        "http://[2001:db8::1]/",
        "http://[::ffff:10.0.0.1]/",
        "http://8.8.8.8/",
    ] {
        assert!(allowed(url, &none), "{url}");
    }
}

#[test]
fn a_listed_network_opens_what_lies_around_it_and_closes_the_rest() {
    let rules = |allow: &[&str], deny: &[&str]| Rules {
        allow_networks: networks(allow),
        deny_networks: networks(deny),
        ..Rules::default()
    };
    for (url, allow, deny, want) in [
        ("http://127.0.0.1/", &["127.0.0.0/8"][..], &[][..], true),
        ("http://127.0.0.1/", &["127.0.0.1"], &[], true),
        ("http://127.0.0.2/", &["127.0.0.1"], &[], false),
        ("http://[::ffff:127.0.0.1]/", &["127.0.0.1"], &[], true),
        ("http://127.0.0.1/", &["126.0.0.0/7"], &[], false),
        ("http://169.254.7.7/", &["169.254.0.0/16"], &[], true),
        ("http://169.254.169.254/", &["169.254.0.0/16"], &[], false),
        ("http://169.254.169.254/", &["169.254.169.254"], &[], true),
        ("https://10.96.0.1/", &["10.0.0.0/8"], &[], false),
        ("https://10.96.0.1/", &["10.96.0.1/32"], &[], true),
        ("http://10.1.1.1/", &["10.0.0.0/8"], &[], true),
        ("http://11.1.1.1/", &["10.0.0.0/8"], &[], false),
        ("http://10.1.1.1/", &["10.0.0.0/8"], &["10.1.0.0/16"], false),
        ("http://[::ffff:10.1.1.1]/", &[], &["10.1.0.0/16"], false),
        ("http://[64:ff9b::a01:101]/", &[], &["64:ff9b::/96"], false),
        ("http://[2001:db8::1]/", &["2001:db8::/32"], &[], true),
        ("http://[2001:db9::1]/", &["2001:db8::/32"], &[], false),
        ("http://10.1.1.1/", &["0.0.0.0/0"], &[], true),
    ] {
        assert_eq!(allowed(url, &rules(allow, deny)), want, "{url} {allow:?} {deny:?}");
    }
}

#[test]
fn a_listed_host_is_called_where_it_is_and_no_other() {
    let rules = Rules {
        allow_hosts: ["hooks.example.com".parse().unwrap(), "*.ns.svc".parse().unwrap()].to_vec(),
        ..Rules::default()
    };
    for (url, address, want) in [
        ("http://hooks.example.com/", "10.0.0.1", true),
        ("http://HOOKS.example.com./", "10.0.0.1", true),
        ("http://hooks.example.com/", "127.0.0.1", false),
        ("http://hooks.example.com:6443/", "192.0.2.7", false),
        ("http://xhooks.example.com/", "10.0.0.1", false),
        ("http://a.ns.svc/", "10.0.0.1", true),
        ("http://ns.svc/", "10.0.0.1", false),
        ("http://xns.svc/", "10.0.0.1", false),
    ] {
        let (decision, _) = decision(url, rules.clone(), &[("192.0.2.7", Some(6443))]);
        assert_eq!(decision.allows(address.parse().unwrap()), want, "{url} {address}");
    }
}

#[test]
fn the_config_map_adds_and_what_cannot_be_read_is_an_error() {
    let map = serde_json::json!({"data": {
        "allowHosts": "# ours\nhooks.example.com\n\n*.ns.svc # below\n",
        "allowNetworks": "10.0.0.0/8",
        "denyNetworks": "10.1.0.0/16\nfd00::/8",
    }});
    let own = Rules { allow_networks: networks(&["192.0.2.0/24"]), ..Rules::default() };
    let rules = with(&own, &map).unwrap();
    assert_eq!((rules.allow_hosts.len(), rules.allow_networks.len(), rules.deny_networks.len()), (2, 2, 2));
    assert_eq!(with(&own, &serde_json::json!({})).unwrap(), own);
    for (key, text) in
        [("allowNetworks", "10.0.0.0/33"), ("denyNetworks", "ten"), ("allowHosts", "http://x"), ("allowHosts", "*.")]
    {
        assert!(with(&own, &serde_json::json!({"data": {key: text}})).is_err(), "{key} {text}");
    }
}
