# shellcheck shell=bash
# What scripts/quickstart and scripts/test share: installing what is missing, the Python environment, building.
# Sourced, not run. Each function says nothing when there is nothing to do.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export TANDEM_MODELS=${TANDEM_MODELS:-$ROOT/models}

say() { printf '%s\n' "$*" >&2; }
die() {
    say "${0##*/}: $*"
    exit 1
}

# Runs a command with its output in a log; shows the log's end when it fails.
quietly() { # LOG COMMAND...
    local log=$1
    shift
    if "$@" >"$log" 2>&1; then return 0; fi
    say "failed: $*"
    tail -n 40 "$log" >&2
    return 1
}

version_at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; } # WANTED FOUND

# Whether this machine can do what a Debian package is wanted for. What was installed by other means counts too.
have() { # PACKAGE
    case $1 in
    gcc) printf '#include <stdio.h>\nint main(void) { return 0; }\n' | ${CC:-cc} -x c - -o /dev/null ;;
    gcc-aarch64-linux-gnu) aarch64-linux-gnu-gcc --version ;;
    libc6-dev-arm64-cross) printf '#include <stdio.h>\nint main(void) { return 0; }\n' | aarch64-linux-gnu-gcc -static -x c - -o /dev/null ;;
    qemu-user) qemu-aarch64 --version ;;
    meson) version_at_least 1.0 "$(meson --version)" ;;
    ninja-build) ninja --version ;;
    pkg-config) pkg-config --version ;;
    libpcre2-dev) pkg-config --exists libpcre2-8 ;;
    libutf8proc-dev) pkg-config --exists libutf8proc ;;
    libjansson-dev) pkg-config --exists jansson ;;
    gnuplot-nox) gnuplot -d -e 'set terminal svg; set terminal pngcairo' ;;
    libcmocka-dev) pkg-config --exists cmocka ;;
    python3) python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' ;;
    python3-venv) python3 -c 'import venv, ensurepip' ;;
    python3-pip) python3 -m pip --version || "$ROOT/.venv/bin/python" -m pip --version ;;
    ca-certificates) [ -e /etc/ssl/certs/ca-certificates.crt ] || [ -e /etc/pki/tls/certs/ca-bundle.crt ] || [ -e /etc/ssl/cert.pem ] ;;
    *) false ;;
    esac >/dev/null 2>&1
}

# Installs those Debian packages whose job nothing on this machine does yet.
need() { # PACKAGE...
    local p missing=() sudo=()
    for p in "$@"; do have "$p" || missing+=("$p"); done
    [ ${#missing[@]} -gt 0 ] || return 0
    # With no recommended packages gcc alone would come without the C library's headers.
    local wanted=("${missing[@]}")
    case " ${missing[*]} " in *' gcc '*) wanted+=(libc6-dev) ;; esac
    if ! command -v apt-get >/dev/null; then
        die "missing here: ${missing[*]} (Debian's names; this machine has no apt-get). Install them with its own package manager and run this again."
    fi
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || die "missing here: ${missing[*]}. As root, run: apt-get install ${wanted[*]}"
        sudo=(sudo)
        say "installing ${missing[*]} (sudo may ask for your password)"
    else
        say "installing ${missing[*]}"
    fi
    local log
    log=$(mktemp)
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq >"$log" 2>&1 || say "apt-get update failed; going on with the package lists that are here"
    quietly "$log" "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${wanted[@]}" || die "apt-get could not install ${wanted[*]}"
    rm -f "$log"
    for p in "${missing[@]}"; do
        have "$p" || die "$p was installed but does not serve (meson: 1.0 or newer is needed); see 'have' in scripts/lib.sh for what is tried"
    done
}

need_build() { need gcc pkg-config ninja-build python3 meson libpcre2-dev libutf8proc-dev libjansson-dev; }
need_fetch() { need python3 ca-certificates python3-pip; }

# The test tools' Python environment, .venv, made anew when tests/requirements.txt changes.
make_venv() {
    need python3 python3-venv ca-certificates
    local venv=$ROOT/.venv want=$ROOT/tests/requirements.txt
    if cmp -s "$want" "$venv/installed.txt" && "$venv/bin/python" -c '' 2>/dev/null; then return 0; fi
    say "making .venv for the test tools"
    rm -rf "$venv"
    quietly /dev/null python3 -m venv "$venv" || { say "python3 -m venv failed"; return 1; }
    quietly "$venv/pip.log" "$venv/bin/python" -m pip install --disable-pip-version-check --quiet -r "$want" || return 1
    cp "$want" "$venv/installed.txt"
}

# Configures FOLDER once (again when arguments or the checkout's place changed) and builds TARGETs, or everything.
# A folder that somebody configured by hand stays as it is.
build() { # FOLDER "MESON ARGUMENTS" TARGET...
    local folder=$ROOT/${1:?} arguments=$2
    shift 2
    local stamp="$ROOT ${CC:-} $arguments"
    if [ ! -e "$folder/build.ninja" ] || { [ -e "$folder/configured.txt" ] && [ "$(cat "$folder/configured.txt")" != "$stamp" ]; }; then
        rm -rf "$folder"
        mkdir -p "$folder"
        # shellcheck disable=SC2086 # the arguments are words of ours
        quietly "$folder/configure.log" meson setup $arguments "$folder" "$ROOT" || return 1
        printf '%s\n' "$stamp" >"$folder/configured.txt"
    fi
    quietly "$folder/build.log" ninja -C "$folder" "$@"
}
