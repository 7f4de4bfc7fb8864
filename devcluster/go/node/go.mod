// The only Go code of our own: small programs of the real node, with nothing but the standard library.
module interlock.invalid/devcluster/node

go 1.26.0
