"""Which parts of the file system a private view covers."""

from hypothesis import given
from hypothesis import strategies as st

from lockstep.machine.mounts import MAX_LAYERS, Mount, divided_cover, is_below, parse_mounts, whole_cover

INFO = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
23 22 0:21 / /proc rw,nosuid - proc proc rw
24 22 0:22 / /dev rw - devtmpfs devtmpfs rw
25 24 0:23 / /dev/shm rw - tmpfs tmpfs rw
26 22 8:1 / /mnt/old rw - ext4 /dev/sdb rw
27 22 8:17 / /mnt/my\\040disk rw,nosuid master:1 - xfs /dev/sdc rw
28 22 8:33 / /mnt/cd rw - iso9660 /dev/sr0 ro
29 26 8:49 / /mnt/old ro - ext4 /dev/sdd rw
"""


def test_the_mounts_are_read_with_their_names_and_the_last_one_at_a_place_counts() -> None:
    assert parse_mounts(INFO) == [
        Mount("/", "ext4", writable=True),
        Mount("/dev", "devtmpfs", writable=True),
        Mount("/dev/shm", "tmpfs", writable=True),
        Mount("/mnt/cd", "iso9660", writable=False),
        Mount("/mnt/my disk", "xfs", writable=True),
        Mount("/mnt/old", "ext4", writable=False),
        Mount("/proc", "proc", writable=True),
    ]


def test_the_whole_view_covers_what_can_be_written_and_puts_back_what_stays() -> None:
    assert [*whole_cover(parse_mounts(INFO)).items()] == [
        ("/", True),
        ("/dev", False),
        ("/mnt/cd", False),
        ("/mnt/my disk", True),
        ("/mnt/old", False),
        ("/proc", False),
    ]


NAMES = st.sampled_from(["a", "b", "dev", "home"])
PLACES = st.lists(NAMES, max_size=3).map(lambda names: "/" + "/".join(names))
MOUNTS = st.lists(
    st.builds(Mount, PLACES, st.sampled_from(["ext4", "proc", "tmpfs"]), st.booleans()), unique_by=lambda m: m.point
).map(lambda found: [Mount("/", "ext4", writable=True), *(mount for mount in found if mount.point != "/")])


@given(MOUNTS)
def test_each_mount_is_covered_or_real_once_behind_what_is_around_it(mounts: list[Mount]) -> None:
    layered = whole_cover(mounts)
    points = [*layered]
    for mount in mounts:
        if mount.point in points:
            assert layered[mount.point] == (not mount.stays)
        else:
            assert is_below(mount.point, [point for point in points if not layered[point]])
    for number, point in enumerate(points):
        assert not any(is_below(other, [point]) for other in points[:number])


@given(MOUNTS)
def test_no_layer_of_a_user_namespace_has_a_mount_in_it_and_all_that_can_be_written_is_covered(
    mounts: list[Mount],
) -> None:
    layers, around_mounts = divided_cover(
        mounts, lambda folder: ["a", "b", "dev", "home"] if folder.count("/") < 4 else []
    )
    places = {mount.point: mount for mount in mounts}
    for layer in layers:
        assert not any(is_below(other, [layer]) for other in places if other != layer)
    for first in ("a", "b", "home"):
        for path in (f"/{first}", f"/{first}/a", f"/{first}/a/b", f"/{first}/home/b"):
            around = max((point for point in places if is_below(path, [point])), key=len)
            real = any(is_below(path, [m.point]) and m.kind == "proc" for m in mounts)
            if not places[around].stays and not real:
                assert is_below(path, layers) or path in around_mounts


def test_folders_without_mounts_are_covered_and_the_ones_around_mounts_are_named() -> None:
    tree = {"/": ["dev", "home", "mnt", "proc", "tmp"], "/mnt": ["cd", "my disk", "old", "own"]}
    assert divided_cover(parse_mounts(INFO), lambda folder: tree.get(folder, [])) == (
        ["/home", "/mnt/my disk", "/mnt/own", "/tmp"],
        ["/", "/mnt"],
    )


def test_a_folder_of_too_many_parts_is_named() -> None:
    mounts = [Mount("/", "ext4", writable=True), Mount("/b/x", "ext4", writable=True)]
    layers, around = divided_cover(mounts, lambda folder: [f"a{n:04d}" for n in range(600)] if folder == "/" else [])
    assert (len(layers), around) == (MAX_LAYERS, ["/"])
    assert divided_cover([], lambda _: []) == (["/"], [])
