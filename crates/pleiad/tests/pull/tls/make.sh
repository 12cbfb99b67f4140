#!/usr/bin/env bash
# Makes the certificate of the stand-in hub and the authority that signs it, for the test of https. Needs openssl.
set -euo pipefail
cd "$(dirname "$0")"
days=36500
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

openssl ecparam -name prime256v1 -genkey -noout -out "$work/ca.key"
openssl req -x509 -new -key "$work/ca.key" -sha256 -days $days -subj "/CN=Pleiad test authority" -out authority.pem

openssl ecparam -name prime256v1 -genkey -noout -out "$work/server.key"
openssl req -new -key "$work/server.key" -subj "/CN=Pleiad test hub" -out "$work/server.csr"
printf 'subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n' > "$work/server.ext"
openssl x509 -req -in "$work/server.csr" -CA authority.pem -CAkey "$work/ca.key" -CAcreateserial \
    -CAserial "$work/serial" -sha256 -days $days -extfile "$work/server.ext" -outform DER -out server.der
openssl pkcs8 -topk8 -nocrypt -in "$work/server.key" -outform DER -out server_key.der
